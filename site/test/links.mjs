// Fails if a link of the built site leads to a page or a heading that it lacks. VitePress looks at pages only, and not
// at what the theme adds, such as the sidebar.
import fs from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { menu } from '../.vitepress/versions.mjs'

const built = fileURLToPath(new URL('../../bin/site/', import.meta.url))
const base = process.env.SITE_BASE ?? '/'
const texts = Object.fromEntries(
  fs.readdirSync(built).filter((file) => file.endsWith('.html')).map((file) => [file, fs.readFileSync(path.join(built, file), 'utf8')]),
)
const attributes = (text, name) => [...text.matchAll(new RegExp(`\\s${name}="([^"]*)"`, 'g'))].map((match) => match[1])
const anchors = Object.fromEntries(Object.entries(texts).map(([file, text]) => [file, new Set(attributes(text, 'id'))]))

// Other versions are built apart.
const elsewhere = new Set(menu.flatMap(({ items }) => items).map(({ link }) => base + link.slice(1)))

let followed = 0
const wrong = new Set()
for (const [file, text] of Object.entries(texts)) {
  for (const href of attributes(text, 'href')) {
    if (elsewhere.has(href)) continue
    const url = new URL(href.replaceAll('&amp;', '&'), `http://site${base}${file}`)
    if (url.host !== 'site') continue
    followed++
    const page = url.pathname.slice(base.length) || 'index.html'
    const anchor = decodeURIComponent(url.hash.slice(1))
    const found = fs.existsSync(path.join(built, page)) && (!anchor || !anchors[page] || anchors[page].has(anchor))
    if (!url.pathname.startsWith(base) || !found) wrong.add(`${file} links to ${href}, which is not there`)
  }
}
for (const line of wrong) console.error(line)
console.log(`${Object.keys(texts).length} pages, ${followed} links, ${wrong.size} wrong`)
if (wrong.size > 0 || followed < 1000) process.exit(1)
