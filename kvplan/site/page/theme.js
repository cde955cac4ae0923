// Before anything is drawn: the colours a person chose here, else those of the system.
try {
  const chosen = localStorage.getItem("kvplan-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // a browser that keeps nothing: the system's colours
}
