// Browsers start no workers for pages opened as files. A hidden frame stands in for one there, so
// that the search needs no server. Material looks for `IFrameWorker`.
if (location.protocol === "file:") {
  window.IFrameWorker = window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${new URL(url, location)}"></script>`;
      this.loaded = new Promise((done) => {
        frame.addEventListener("load", () => {
          frame.contentWindow.postMessage = (data) =>
            this.dispatchEvent(new MessageEvent("message", { data }));
          done(frame.contentWindow);
        });
      });
      document.body.append(frame);
    }

    postMessage(data) {
      this.loaded.then((there) => there.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
