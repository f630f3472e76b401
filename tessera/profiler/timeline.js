// Draws the timeline of a kernel's warps: a row for each, its phases above its activities. Works without a network.
"use strict";
const root = document.documentElement;
const data = JSON.parse(document.querySelector("#data").textContent);
const box = document.querySelector("#timeline"), canvas = box.querySelector("canvas"), tip = document.querySelector("#tip");
const LEFT = 190, TOP = 22, ROW = 26, PHASE = 7;
const color = (i) => `hsl(${(i * 137.5 + 205) % 360} 62% 55%)`;
const name = (i) => data.names[i];
for (const key of document.querySelectorAll(".key")) key.querySelector("i").style.background = color(+key.dataset.name);
const last = (list) => list[list.length - 1];
const whole = [0, Math.max(1e-9, ...data.tracks.map((t) => last(t.spans)[2] + last(t.spans)[3]))];
let view = [...whole];
const shown = (x) => data.unit === "s"
  ? (x < 1e-3 ? `${(x * 1e6).toFixed(3)} us` : `${(x * 1e3).toFixed(3)} ms`) : `${x.toFixed(0)} ${data.unit}`;

function draw() {
  const ratio = devicePixelRatio || 1, width = box.clientWidth, height = TOP + ROW * data.tracks.length + 6;
  canvas.width = width * ratio; canvas.height = height * ratio; canvas.style.height = `${height}px`;
  const g = canvas.getContext("2d"), look = getComputedStyle(root);
  const fg = look.getPropertyValue("--fg"), soft = look.getPropertyValue("--soft"), line = look.getPropertyValue("--line");
  const at = (t) => LEFT + (t - view[0]) / (view[1] - view[0]) * (width - LEFT);
  g.scale(ratio, ratio); g.font = "11px system-ui, sans-serif"; g.textBaseline = "middle";
  const step = 10 ** Math.floor(Math.log10((view[1] - view[0]) / 3));
  for (let t = Math.ceil(view[0] / step) * step; t < view[1]; t += step) {
    g.fillStyle = line; g.fillRect(at(t), 0, 1, height);
    if (at(t + step) - at(t) > 60 || Math.round(t / step) % 5 === 0) { g.fillStyle = soft; g.fillText(shown(t), at(t) + 3, TOP / 2); }
  }
  data.tracks.forEach((track, i) => {
    const y = TOP + ROW * i;
    for (const [what, start, end] of track.phases) {
      g.fillStyle = soft; g.globalAlpha = what.startsWith("loop") ? 0.7 : 0.3;
      if (end > view[0] && start < view[1]) g.fillRect(Math.max(at(start), LEFT), y + 1, Math.max(at(end) - Math.max(at(start), LEFT), 0.5), PHASE - 2);
    }
    g.globalAlpha = 1;
    for (const [what, , start, length] of track.spans) {
      if (start + length < view[0] || start > view[1]) continue;
      const x = Math.max(at(start), LEFT), w = Math.max(at(start + length) - x, 0.4);
      g.fillStyle = color(what); g.fillRect(x, y + PHASE, w, ROW - PHASE - 3);
      if (w > 50) { g.save(); g.beginPath(); g.rect(x, y, w, ROW); g.clip(); g.fillStyle = "#111"; g.fillText(name(what), x + 3, y + (ROW + PHASE) / 2 - 1); g.restore(); }
    }
    g.fillStyle = fg; g.fillText(`CTA ${track.cta}, warp ${track.warp}: ${track.role}`, 6, y + ROW / 2);
  });
}

function under(event) {
  const r = canvas.getBoundingClientRect(), track = data.tracks[Math.floor((event.clientY - r.top - TOP) / ROW)];
  const t = view[0] + (event.clientX - r.left - LEFT) / (r.width - LEFT) * (view[1] - view[0]);
  const span = track && track.spans.find(([, , start, length]) => start <= t && t < start + length);
  const phase = track && track.phases.find(([, start, end]) => start <= t && t < end);
  return [t, track, span, phase];
}
canvas.addEventListener("mousemove", (event) => {
  const [, track, span, phase] = under(event);
  tip.hidden = !span;
  if (!span) return;
  const place = phase ? `, ${phase[0]}${phase[3] ? `, ${phase[3]} iterations` : ""}` : "";
  tip.textContent = `${name(span[0])}${span[1] ? `, line ${span[1]}` : ""}: ${shown(span[3])} from ${shown(span[2])}${place}, on ${track.on}`;
  tip.style.left = `${Math.min(event.clientX + 12, innerWidth - 340)}px`; tip.style.top = `${event.clientY + 14}px`;
});
canvas.addEventListener("mouseleave", () => { tip.hidden = true; });
canvas.addEventListener("wheel", (event) => {
  if (event.shiftKey) return;
  event.preventDefault();
  const [t] = under(event), by = Math.exp(event.deltaY * 0.002);
  view = [Math.max(whole[0], t - (t - view[0]) * by), Math.min(whole[1], t + (view[1] - t) * by)];
  draw();
}, {passive: false});
let held = null;
canvas.addEventListener("mousedown", (event) => { held = [event.clientX, ...view]; });
addEventListener("mouseup", () => { held = null; });
addEventListener("mousemove", (event) => {
  if (!held) return;
  const by = (event.clientX - held[0]) / (canvas.clientWidth - LEFT) * (held[2] - held[1]);
  const move = Math.min(Math.max(by, held[2] - whole[1]), held[1] - whole[0]);
  view = [held[1] - move, held[2] - move];
  draw();
});
canvas.addEventListener("dblclick", () => { view = [...whole]; draw(); });
document.querySelector("#theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  draw();
});
addEventListener("resize", draw);
draw();
