// Builds the documents of the repository as they are: they stay readable at the code host, with links between files.
import path from 'node:path'
import { defineConfig } from 'vitepress'
import { documentLinks, literal, slugify } from './markdown.mjs'
import { others, pages, repository, sidebar } from './pages.mjs'
import { menu, version } from './versions.mjs'

const source = 'https://github.com/refvol/refvol'

// Pages lie outside of the directory that has the modules which their code imports.
const modulesForPages = {
  name: 'modules-for-pages',
  enforce: 'pre',
  resolveId(module, importer, options) {
    if (!/^vue(\/|$)/.test(module) || !importer?.endsWith('.md')) return
    return this.resolve(module, path.join(repository, 'site', 'package.json'), { ...options, skipSelf: true })
  },
}

export default defineConfig({
  title: 'refvol',
  description: 'ConfigMaps and Secrets as live files in Kubernetes pods',
  lang: 'en',
  // A project's pages lie below its name: the workflow sets SITE_BASE=/refvol/.
  base: process.env.SITE_BASE ?? '/',
  srcDir: repository,
  outDir: path.join(repository, 'bin', 'site'),
  cacheDir: path.join(repository, 'site', 'node_modules', '.cache', 'vitepress'),
  // A link to a file that is no page leads to the code host.
  srcExclude: ['**/bin/**', ...others],
  rewrites: pages,
  cleanUrls: false,
  markdown: {
    linkify: false,
    anchor: { slugify },
    config: (md) => md.use(literal).use(documentLinks, { repository, source, version, pages }),
  },
  vite: { plugins: [modulesForPages] },
  themeConfig: {
    search: { provider: 'local', options: { detailedView: true } },
    nav: [
      { text: 'Tutorial', link: '/getting-started' },
      { text: 'How-to', link: '/recipes' },
      { text: 'Reference', link: '/attributes' },
      { text: 'Explanation', link: '/how-it-works' },
      ...menu,
    ],
    sidebar,
    outline: [2, 3],
    socialLinks: [{ icon: 'github', link: source }],
    // A release can't be edited.
    editLink: version === 'main' ? { pattern: `${source}/edit/main/:path`, text: 'Edit this page' } : undefined,
    footer: { message: 'Apache License 2.0' },
  },
})
