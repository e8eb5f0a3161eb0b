// Opens the built site in Chromium as a reader would. CHROMIUM names the program, and SITE_BASE a
// version below the site. Pictures are left in bin/site-test.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import http from 'node:http'
import path from 'node:path'
import test, { after, before } from 'node:test'
import { fileURLToPath } from 'node:url'
import { chromium } from 'playwright-core'

const built = fileURLToPath(new URL('../../bin/site/', import.meta.url))
const pictures = fileURLToPath(new URL('../../bin/site-test/', import.meta.url))
const types = { '.html': 'text/html', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.woff2': 'font/woff2' }
const wide = { width: 1280, height: 800 }
const phone = { width: 390, height: 844 }

let server, browser, site

before(async () => {
  fs.mkdirSync(pictures, { recursive: true })
  server = http.createServer((request, response) => {
    const file = path.join(built, decodeURIComponent(new URL(request.url, 'http://site').pathname).replace(/\/$/, '/index.html'))
    if (!file.startsWith(built) || !fs.existsSync(file)) return response.writeHead(404).end()
    response.writeHead(200, { 'content-type': types[path.extname(file)] ?? 'application/octet-stream' })
    fs.createReadStream(file).pipe(response)
  })
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve))
  site = `http://127.0.0.1:${server.address().port}${process.env.SITE_BASE ?? '/'}`
  // The sandbox of Chromium does not work as root.
  browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', chromiumSandbox: process.getuid() !== 0 })
})

after(async () => {
  await browser?.close()
  server.closeAllConnections()
  server.close()
})

// open gives the function a page of the site. It fails on an error of the page, and on a request that fails or leaves.
async function open(name, options, run) {
  const context = await browser.newContext({ viewport: wide, ...options })
  const faults = []
  // Nothing leaves the machine, whatever the page asks for.
  await context.route((url) => !url.href.startsWith(site) && !/^(data|blob):/.test(url.protocol), (route) => {
    faults.push(`a request to another host: ${route.request().url()}`)
    return route.abort()
  })
  const page = await context.newPage()
  page.on('pageerror', (error) => faults.push(String(error)))
  page.on('response', (response) => response.status() >= 400 && faults.push(`${response.status()} ${response.url()}`))
  await page.goto(site + name)
  await page.waitForFunction(() => document.querySelector('#app')?.__vue_app__)
  await run(page)
  await context.close()
  assert.deepEqual(faults, [])
}

const picture = (page, name) => page.screenshot({ path: path.join(pictures, name + '.png') })
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor)
const excess = (page) => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)

test('front page', () => open('', {}, async (page) => {
  assert.match(await page.textContent('h1'), /refvol/)
  await picture(page, 'front-1280')
  await page.click('.VPHero a:has-text("Get started")')
  await page.waitForURL('**/readme.html*')
  // The address changes before the page does. The front page has no such heading.
  await page.locator('.vp-doc h1').waitFor()
}))

test('a search for subPath', () => open('', {}, async (page) => {
  await page.click('.VPNavBarSearch button')
  await page.fill('.VPLocalSearchBox input', 'subPath')
  const results = page.locator('.VPLocalSearchBox .result')
  await results.first().waitFor()
  assert.ok((await results.count()) >= 3)
  await page.locator('.VPLocalSearchBox mark').first().waitFor()
  await picture(page, 'search-1280')
  await results.first().click()
  await page.waitForURL('**/*.html*')
  await page.locator('.vp-doc:has-text("subPath")').waitFor()
}))

for (const [scheme, other] of [['light', 'dark'], ['dark', 'light']]) {
  test(`${scheme} as the system asks, and ${other} by the switch`, () => open('commands.html', { colorScheme: scheme }, async (page) => {
    const is = (color) => (/\(255, 255, 255\)/.test(color) ? 'light' : 'dark')
    assert.equal(is(await background(page)), scheme)
    await picture(page, `reference-1280-${scheme}`)
    await page.locator('.VPNavBar .VPSwitchAppearance').first().click()
    await page.waitForFunction((dark) => document.documentElement.classList.contains('dark') === dark, other === 'dark')
    assert.equal(is(await background(page)), other)
  }))
}

for (const name of fs.readdirSync(built).filter((file) => file.endsWith('.html') && file !== '404.html')) {
  test(`${name} on a phone`, () => open(name, { viewport: phone, hasTouch: true }, async (page) => {
    assert.equal(await excess(page), 0, 'the page is wider than the phone')
    if (name === 'index.html') await picture(page, 'front-390')
    if (name === 'attributes.html') await picture(page, 'reference-390')
  }))
}

test('search and menu on a phone', () => open('commands.html', { viewport: phone, hasTouch: true }, async (page) => {
  await page.click('.VPLocalNav .menu')
  await page.locator('.VPSidebar.open').waitFor()
  await page.click('.VPSidebar a:has-text("Limits")')
  await page.waitForURL('**/limits.html')
  await page.click('.VPNavBarSearch button')
  await page.fill('.VPLocalSearchBox input', 'subPath')
  await page.locator('.VPLocalSearchBox .result').first().waitFor()
  await picture(page, 'search-390')
}))
