/* Browsers refuse workers to pages that are opened from disk. There the search runs in a hidden frame instead. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.scope = frame.contentWindow
      const queue = this.queue = []
      this.scope.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      this.scope.importScripts = () => { throw new Error("no scripts besides") }
      const script = frame.contentDocument.createElement("script")
      script.src = url
      script.onload = () => {
        this.queue = null
        queue.forEach(data => this.postMessage(data))
      }
      frame.contentDocument.body.append(script)
    }
    postMessage(data) {
      if (this.queue) this.queue.push(data)
      else this.scope.dispatchEvent(new MessageEvent("message", { data }))
    }
    terminate() { this.scope.frameElement.remove() }
  }
