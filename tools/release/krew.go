package main

import (
	"bytes"
	"crypto/sha256"
	_ "embed"
	"fmt"
	"os"
	"path/filepath"
	"text/template"
)

//go:embed krew.yaml.tmpl
var krewTemplate string

// completerName is what kubectl runs to complete the plugin's command line.
const completerName = "kubectl_complete-refvol"

type krewArchive struct{ OS, Arch, File, SHA256, Bin string }

// writeKrew packs the programs that krew installs, with the license that it asks for, and writes
// the manifest that names the archives.
func writeKrew(o *options, dir string, built []binary) error {
	license, err := os.ReadFile(filepath.Join(o.root, "LICENSE"))
	if err != nil {
		return err
	}
	var archives []krewArchive
	for _, b := range built {
		if !b.krew {
			continue
		}
		content, err := os.ReadFile(b.path)
		if err != nil {
			return err
		}
		completer, err := os.ReadFile(filepath.Join(o.root, "cmd", b.name, completerName))
		if err != nil {
			return err
		}
		bin := b.name + filepath.Ext(b.path)
		text, err := archive([]archived{{"LICENSE", license, 0o644}, {bin, content, 0o755}, {completerName, completer, 0o755}})
		if err != nil {
			return err
		}
		file := b.name + "_" + b.platform.String() + ".tar.gz"
		if err := write(dir, file, text); err != nil {
			return err
		}
		archives = append(archives, krewArchive{b.os, b.arch, file, fmt.Sprintf("%x", sha256.Sum256(text)), bin})
	}
	if len(archives) == 0 {
		return nil
	}
	t, err := template.New("krew").Option("missingkey=error").Parse(krewTemplate)
	if err != nil {
		return err
	}
	var manifest bytes.Buffer
	if err := t.Execute(&manifest, map[string]any{"Version": o.version, "Archives": archives}); err != nil {
		return err
	}
	return write(dir, "krew.yaml", manifest.Bytes())
}
