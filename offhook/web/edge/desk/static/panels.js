// What is shown beside the phone.

/**
 * Called once somebody has signed in. `context` has `number`, the extension; `phone`, an EventTarget with the events
 * "ringing", "answered", "held" and "ended", whose detail is {id, caller, name, headers, …}; and the methods
 * answer(id), decline(id), hangUp(id) and transfer(id, target). Returns what ends it, when they sign out.
 */
export function start(context) {
  return () => void context;
}
