import fs from 'node:fs'
import path from 'node:path'

// slugify names a heading as the code host does, so that one link serves both.
export const slugify = (heading) => heading.toLowerCase().replace(/[^\w -]/g, '').replaceAll(' ', '-')

// literal is a plugin of markdown-it. Vue would take {{ }} for a template: documents have none. Indented code looks like
// fenced code, which scrolls.
export function literal(md) {
  md.core.ruler.push('literal', ({ tokens }) => {
    for (const token of tokens) {
      if (token.type === 'code_block') Object.assign(token, { type: 'fence', info: 'text' })
      for (const child of token.children ?? []) if (child.type === 'code_inline') child.attrSet('v-pre', '')
    }
  })
  const text = md.renderer.rules.text
  md.renderer.rules.text = (...args) => text(...args).replaceAll('{{', '&#123;&#123;')
}

// documentLinks is a plugin of markdown-it. It turns a link to a file of the repository into one to its page, or to the
// code host if the file is no page.
export function documentLinks(md, { repository, source, version, pages }) {
  const address = (href, file) => {
    if (/^([a-z]+:|#|\/)/.test(href)) return href
    const [, name, anchor] = href.match(/^([^#]*)(#.*)?$/)
    const target = path.relative(repository, path.resolve(path.dirname(file), name))
    if (pages[target]) return '/' + pages[target] + (anchor ?? '')
    const found = fs.statSync(path.join(repository, target), { throwIfNoEntry: false })
    if (!found) throw new Error(`${file} links to ${name}, which does not exist`)
    return `${source}/${found.isDirectory() ? 'tree' : 'blob'}/${version}/${target}${anchor ?? ''}`
  }
  md.core.ruler.push('document-links', ({ tokens, env }) => {
    const links = tokens.flatMap((token) => token.children ?? []).filter((token) => token.type === 'link_open')
    for (const link of links) link.attrSet('href', address(link.attrGet('href'), env.realPath ?? env.path))
  })
}
