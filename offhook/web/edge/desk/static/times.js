// Times as people read them.

/** How long it is since a time in seconds since 1970: "0:07", "1:02:30". */
export function lasted(since) {
  const all = Math.max(0, Math.floor(Date.now() / 1000 - since));
  const parts = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const [first, ...rest] = parts[0] ? parts : parts.slice(1);
  return [first, ...rest.map((part) => String(part).padStart(2, "0"))].join(":");
}
