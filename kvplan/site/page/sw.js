// After the first visit the page works without a network: every file of the site is kept, under the site's own name.
const CURRENT = "kvplan-current";

async function contents() {
  const answer = await fetch("site.json", { cache: "no-cache" });
  return answer.json();
}

self.addEventListener("install", (event) => {
  event.waitUntil((async () => {
    const { name, files } = await contents();
    const cache = await caches.open(`kvplan-${name}`);
    const wanted = ["./", ...Object.keys(files)];
    await Promise.all(wanted.map(async (path) => (await cache.match(path)) ?? cache.add(new Request(path, { cache: "no-cache" }))));
    const current = await caches.open(CURRENT);
    await current.put("name", new Response(name));
    self.skipWaiting();
  })());
});

self.addEventListener("activate", (event) => {
  event.waitUntil((async () => {
    const name = await (await (await caches.open(CURRENT)).match("name"))?.text();
    for (const each of await caches.keys()) if (each !== CURRENT && each !== `kvplan-${name}`) await caches.delete(each);
    await self.clients.claim();
  })());
});

/** The network first for what is small, so that a new site is seen; what was kept where there is none. */
self.addEventListener("fetch", (event) => {
  const address = new URL(event.request.url);
  if (event.request.method !== "GET" || address.origin !== self.location.origin) return;
  event.respondWith((async () => {
    const isLarge = address.pathname.includes("/pyodide/");
    const kept = () => caches.match(event.request, { ignoreSearch: true });
    if (isLarge) return (await kept()) ?? fetch(event.request);
    try {
      return await fetch(event.request);
    } catch (error) {
      const found = await kept();
      if (found) return found;
      throw error;
    }
  })());
});
