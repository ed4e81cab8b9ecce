// Search where the site is opened as files: browsers start no worker there, so a hidden frame takes a worker's place.
"use strict";
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      // Messages wait until the script in the frame has been loaded.
      this.loaded = new Promise((loaded) => {
        frame.addEventListener("load", () => {
          const inside = frame.contentWindow;
          inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
          inside.importScripts = (...urls) => urls.reduce((before, one) => before.then(() => load(inside, one)), Promise.resolve());
          load(inside, url).then(() => loaded(inside));
        }, { once: true });
      });
      document.documentElement.append(frame);
    }

    postMessage(data) {
      this.loaded.then((inside) => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
  };
  const load = (inside, url) => new Promise((done, failed) => {
    const script = inside.document.createElement("script");
    script.src = new URL(url, location.href);
    script.onload = done;
    script.onerror = failed;
    inside.document.head.append(script);
  });
}
