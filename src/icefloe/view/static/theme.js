// Applies the saved theme before the page is drawn.
try {
  const saved = localStorage.getItem("icefloe-theme");
  if (saved === "light" || saved === "dark") document.documentElement.dataset.theme = saved;
} catch (error) {
  // Storage may be disabled. Then the theme of the system is used.
}
