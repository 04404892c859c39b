// In a page with late.js: calls by a caller who does not wait. `scenarios(where)` gives them by name, of
// offhook's own page or of embed.js's button; each gives what was open during and after it.

window.scenarios = (where) => {
  const { late } = window;
  const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
  const find = (id) => document.getElementById(id);
  const STATES = { idle: "idle", ended: "idle", connecting: "calling" };

  // How a page is called by, and the URLs that a call is set up and its offer answered at.
  const own = {
    begin: "start",
    answer: "/api/offer",
    press: () => find("call").click(),
    hangUp: () => find(own.state() === "talking" ? "hangup" : "call").click(),
    state: () => STATES[document.body.dataset.state] ?? document.body.dataset.state,
  };
  const host = () => document.querySelector("offhook-call");
  const inHost = () => host().shadowRoot.querySelector("button");
  const button = {
    begin: "/secret",
    answer: "/v1/realtime/calls",
    press: () => inHost().click(),
    hangUp: () => inHost().click(),
    state: () => inHost().dataset.state,
  };
  const caller = { own, button }[where];
  const STEPS = ["permission", caller.begin, "description", caller.answer];

  async function until(state) {
    while (caller.state() !== state) await pause(20);
  }

  /** What there is once what was let go has been dealt with. */
  async function left() {
    await pause(100);
    const { microphones, peers, screens } = late.open();
    return `${caller.state()}, ${microphones} microphones, ${peers} connections, ${screens} screens`;
  }

  async function talk() {
    caller.press();
    await until("talking");
  }

  /** A call that has come to a step, which is held back. */
  function callUpTo(step) {
    return heldBack(step, caller.press);
  }

  /** What is held back when that is done. */
  async function heldBack(kind, act) {
    late.hold(kind);
    act();
    const held = await late.next(kind);
    late.release(kind);
    return held;
  }

  /** The same, hung up there; then what it waits for comes after all. */
  async function hungUpAt(step, comes) {
    const held = await callUpTo(step);
    caller.hangUp();
    const before = await left();
    await comes(held);
    return [before, await left()];
  }

  /** The same, with a call placed in between that is through by then. */
  async function nextCallAt(step, comes) {
    const held = await callUpTo(step);
    caller.hangUp();
    await talk();
    const { offers } = late.open();
    await comes(held);
    const during = await left();
    const more = late.open().offers - offers;
    caller.hangUp();
    return [during, `${more} more offers`, await left()];
  }

  const COMES = {
    comes: (held) => held.go(),
    fails: (held) => held.fail(new DOMException("no", "NotAllowedError")),
    "is refused": (held) => held.answer(new Response("{}", { status: 403 })),
  };
  const calls = {
    async "pressed twice"() {
      late.hold("permission");
      caller.press();
      caller.press();
      await (await late.next("permission")).go();
      late.release("permission");
      return [await left()];
    },
    async "pressed five times"() {
      for (let n = 0; n < 5; n++) caller.press();
      await until("talking");
      const during = await left();
      caller.hangUp();
      return [during, await left()];
    },
    async "one after another"() {
      const seen = [];
      for (let n = 0; n < 3; n++) {
        await talk();
        seen.push(await left());
        caller.hangUp();
        seen.push(await left());
      }
      return seen;
    },
    async "the page is left while it is asked"() {
      const held = await callUpTo("permission");
      dispatchEvent(new PageTransitionEvent("pagehide"));
      await held.go();
      return [await left()];
    },
    async "the page is left in the call"() {
      await talk();
      dispatchEvent(new PageTransitionEvent("pagehide"));
      return [await left()];
    },
  };
  for (const step of STEPS) {
    for (const [how, comes] of Object.entries(COMES)) {
      if (how === "is refused" && !/\//.test(step) && step !== caller.begin) continue; // no answer
      calls[`hung up at ${step}, which ${how}`] = () => hungUpAt(step, comes);
      calls[`another call at ${step}, which ${how}`] = () => nextCallAt(step, comes);
    }
  }

  /** Another microphone is chosen in a call. */
  function choose() {
    find("microphone").selectedIndex = find("microphone").length - 1;
    find("microphone").dispatchEvent(new Event("change"));
  }

  const ofPage = {
    async "hung up while another microphone is opened"() {
      await talk();
      const held = await heldBack("permission", choose);
      caller.hangUp();
      await held.go();
      return [await left()];
    },
    async "another call while another microphone is opened"() {
      await talk();
      const held = await heldBack("permission", choose);
      caller.hangUp();
      await talk();
      const [heard] = late.seen.sources.slice(-1);
      await held.go();
      const during = await left();
      const same = late.seen.sources.filter(({ readyState }) => readyState === "live").includes(heard);
      caller.hangUp();
      return [during, same ? "its own is measured" : "another is measured", await left()];
    },
    async "another microphone that fails after the call"() {
      await talk();
      const held = await heldBack("permission", choose);
      caller.hangUp();
      held.fail(new DOMException("no", "NotAllowedError"));
      return [await left()];
    },
    async "hung up while another microphone is put in"() {
      await talk();
      const held = await heldBack("track", choose);
      caller.hangUp();
      await held.go();
      return [await left()];
    },
    async "two microphones chosen, the first of which comes last"() {
      await talk();
      late.hold("permission");
      choose();
      const first = await late.next("permission");
      choose();
      const second = await late.next("permission");
      late.release("permission");
      await second.go();
      await pause(100);
      await first.go();
      const during = await left();
      caller.hangUp();
      return [during, await left()];
    },
    async "hung up before the screen is kept on"() {
      const held = await heldBack("screen", caller.press);
      caller.hangUp();
      await held.go();
      return [await left()];
    },
    async "a permission of the call before is not measured"() {
      const held = await callUpTo("permission");
      caller.hangUp();
      await talk();
      const before = late.seen.sources.length;
      await held.go();
      await pause(100);
      const more = late.seen.sources.length - before;
      caller.hangUp();
      return [`${more} more sounds are measured`, await left()];
    },
    async "an answer after hanging up is cancelled"() {
      const held = await callUpTo(own.answer);
      caller.hangUp();
      const before = late.seen.cancelled.length;
      await held.go();
      for (let n = 0; n < 100 && late.seen.cancelled.length === before; n++) await pause(50);
      return [`${late.seen.cancelled.length - before} cancelled`, await left()];
    },
    async "a try of the microphone that is refused after the next one began"() {
      find("sound-button").click();
      late.hold("permission");
      find("test").click();
      const first = await late.next("permission");
      find("test").click();
      find("test").click();
      const second = await late.next("permission");
      late.release("permission");
      await second.go();
      await pause(100);
      first.fail(new DOMException("no", "NotAllowedError"));
      await pause(100);
      const word = find("test-word").textContent;
      find("sound").close();
      return [word, await left()];
    },
    async "an attempt to go on that is refused after the next one is up"() {
      await talk();
      late.hold(own.answer);
      late.breakOff(late.seen.peers.at(-1));
      const first = await late.next(own.answer);
      const second = await late.next(own.answer); // after some seconds
      late.release(own.answer);
      await second.go();
      await until("talking");
      first.answer(new Response("{}", { status: 404 }));
      const during = await left();
      caller.hangUp();
      return [during, await left()];
    },
  };
  const ofButton = {
    async "its button is taken away while it is asked"() {
      const held = await callUpTo("permission");
      const [there, element] = [host().parentNode, host()];
      element.remove();
      await pause(50);
      await held.go();
      there.append(element);
      return [await left()];
    },
    async "its button is taken away in the call"() {
      await talk();
      const [there, element] = [host().parentNode, host()];
      element.remove();
      await pause(50);
      there.append(element);
      return [await left()];
    },
    async "its button is moved in the call"() {
      await talk();
      document.body.append(host());
      const during = await left();
      caller.hangUp();
      return [during, await left()];
    },
  };
  Object.assign(calls, { own: ofPage, button: ofButton }[where]);
  return calls;
};
