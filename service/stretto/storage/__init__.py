"""Everything that speaks to PostgreSQL."""
