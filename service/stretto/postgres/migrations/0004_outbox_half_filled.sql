-- Taking an event finds room on its own page (HOT); what is there already stays as it is.
ALTER TABLE outbox SET (fillfactor = 50);
