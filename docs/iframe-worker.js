// Pages opened from a disk (file://) may start no worker, and the theme's search is one. There it runs in
// a frame of the page instead; on a server nothing changes. `plugins: offline` in mkdocs.yml has the index
// written as a script, which such pages may load.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.ready = new Promise((loaded) => (inside.loaded = loaded));
      inside.document.write("<!doctype html><body>");
      inside.document.close();
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => inside.loaded();
      inside.document.body.append(script);
      this.inside = inside;
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
    }
  };
}
