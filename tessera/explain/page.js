// Highlights what belongs to a source line in all panes, switches levels and the theme. Works without a network.
"use strict";
const root = document.documentElement;
document.querySelector("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
for (const report of document.querySelectorAll("section.report")) {
  const at = (line) => report.querySelectorAll(`[data-line="${line}"]`);
  let kept = null;
  const show = (line, scroll, from) => {
    for (const x of report.querySelectorAll(".lit")) x.classList.remove("lit");
    if (line === null) return;
    for (const x of at(line)) x.classList.add("lit");
    if (!scroll) return;
    for (const pane of report.querySelectorAll(".pane")) {
      const first = [...pane.querySelectorAll(".lit")].find((x) => x.offsetParent !== null);
      if (first && !pane.contains(from)) {
        pane.scrollTop += first.getBoundingClientRect().top - pane.getBoundingClientRect().top - pane.clientHeight / 3;
      }
    }
  };
  report.addEventListener("mouseover", (event) => {
    const x = event.target.closest("[data-line]");
    show(x ? x.dataset.line : kept, false, null);
  });
  report.addEventListener("click", (event) => {
    const x = event.target.closest("[data-line]");
    if (!x) return;
    kept = kept === x.dataset.line ? null : x.dataset.line;
    show(kept, true, x);
  });
  for (const button of report.querySelectorAll("button[data-level]")) {
    button.addEventListener("click", () => {
      for (const b of report.querySelectorAll("button[data-level]")) b.setAttribute("aria-selected", b === button);
      for (const ir of report.querySelectorAll(".ir")) ir.classList.toggle("shown", ir.dataset.level === button.dataset.level);
      show(kept, kept !== null, button.closest(".source"));
    });
  }
}
if (location.hash.startsWith("#line-")) document.querySelector(`[data-line="${location.hash.slice(6)}"]`)?.click();
