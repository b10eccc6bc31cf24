// What /metrics says, and what has happened between two readings. No page is touched here.

// Prometheus' text format: [{name, labels, value}].
export function parsed(text) {
  const samples = [];
  for (const line of text.split("\n")) {
    const found = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!found) continue;
    const labels = [...(found[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)];
    samples.push({
      name: found[1],
      labels: Object.fromEntries(labels.map(([, name, value]) => [name, value])),
      value: number(found[3]),
    });
  }
  return samples;
}

// What the plots need of one reading.
export function reading(samples, atSeconds) {
  const of = (name) => samples.filter((sample) => sample.name === name);
  const sum = (found) => found.reduce((total, { value }) => total + value, 0);
  const answered = of("stretto_attempts_total");
  // Under a host's prefix the route begins with it. A GET of it lists groups.
  const creations = of("stretto_http_request_seconds_bucket").filter(
    ({ labels }) => labels.method === "POST" && labels.route.endsWith("/v1/groups"),
  );
  const lags = [...of("stretto_relay_lag_seconds"), ...of("stretto_webhook_lag_seconds")];
  return {
    atSeconds,
    answered: sum(answered),
    wrote: sum(answered.filter(({ labels }) => /^(created|recovered)$/.test(labels.outcome))),
    buckets: creations.map(({ labels, value }) => [number(labels.le), value]),
    writes: sum(of("stretto_batch_writes_sum")),
    batches: sum(of("stretto_batch_writes_count")),
    lagSeconds: lags.length ? Math.max(...lags.map(({ value }) => value)) : null,
  };
}

// What has happened from one reading to a later one; null where nothing has.
export function change(before, after) {
  const seconds = after.atSeconds - before.atSeconds;
  const batches = after.batches - before.batches;
  const buckets = after.buckets.map(([le, count], at) => {
    return [le, count - (before.buckets[at]?.[1] ?? 0)];
  });
  // An instance that has restarted counts from 0 again.
  if (seconds <= 0 || after.answered < before.answered || batches < 0) return null;
  return {
    answered: (after.answered - before.answered) / seconds,
    wrote: (after.wrote - before.wrote) / seconds,
    p50: quantile(buckets, 0.5),
    p99: quantile(buckets, 0.99),
    batch: batches ? (after.writes - before.writes) / batches : null,
    lagSeconds: after.lagSeconds,
  };
}

// As Prometheus' histogram_quantile: even within a bucket; null without observations.
export function quantile(buckets, share) {
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!(total > 0)) return null;
  const rank = share * total;
  const at = buckets.findIndex(([, count]) => count >= rank);
  const [low, below] = at > 0 ? buckets[at - 1] : [0, 0];
  const [high, count] = buckets[at];
  return high === Infinity ? low : low + ((high - low) * (rank - below)) / (count - below);
}

function number(text) {
  return text === "+Inf" ? Infinity : Number(text);
}
