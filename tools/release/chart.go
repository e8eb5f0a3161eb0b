package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
)

// writeChart packs the chart under the release's version. Helm's own package command writes the
// time of the day into the archive.
func writeChart(o *options, dir string) error {
	chart, err := loader.LoadDir(filepath.Join(o.root, "deploy", "charts", "refvol"))
	if err != nil {
		return err
	}
	files := make([]archived, 0, len(chart.Raw))
	for _, file := range chart.Raw {
		content, err := o.chartFile(file)
		if err != nil {
			return err
		}
		files = append(files, archived{path.Join(chart.Name(), file.Name), content, 0o644})
	}
	text, err := archive(files)
	if err != nil {
		return err
	}
	return write(dir, chart.Name()+"-"+o.number()+".tgz", text)
}

// replacement is a line that a release sets.
type replacement struct {
	line *regexp.Regexp
	text string
}

// chartFile returns a file of the chart with the release's version.
func (o *options) chartFile(file *common.File) ([]byte, error) {
	var replacements []replacement
	switch file.Name {
	case "Chart.yaml":
		replacements = []replacement{
			{regexp.MustCompile(`(?m)^version: .*$`), "version: " + o.number()},
			{regexp.MustCompile(`(?m)^appVersion: .*$`), "appVersion: " + o.version},
			{regexp.MustCompile(`(?m)image: ` + regexp.QuoteMeta(imageName) + `:.*$`), "image: " + imageName + ":" + o.version},
			{regexp.MustCompile(`(?m)^  artifacthub.io/prerelease: .*$`), fmt.Sprintf("  artifacthub.io/prerelease: %q", fmt.Sprint(!o.final()))},
		}
	}
	content := file.Data
	for _, r := range replacements {
		if found := len(r.line.FindAllIndex(content, -1)); found != 1 {
			return nil, fmt.Errorf("%s has %d lines that match %q, not one", file.Name, found, r.line)
		}
		content = r.line.ReplaceAllLiteral(content, []byte(r.text))
	}
	return content, nil
}

// archived is a file of an archive.
type archived struct {
	name    string
	content []byte
	mode    int64
}

// archive returns files as a compressed tar archive, in the order of their names and without a
// time or an owner.
func archive(files []archived) ([]byte, error) {
	slices.SortFunc(files, func(a, b archived) int { return strings.Compare(a.name, b.name) })
	var stream bytes.Buffer
	compressor := gzip.NewWriter(&stream)
	writer := tar.NewWriter(compressor)
	for _, f := range files {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: f.name, Size: int64(len(f.content)), Mode: f.mode, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := writer.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	if err := compressor.Close(); err != nil {
		return nil, err
	}
	return stream.Bytes(), nil
}
