package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

const chartName = "refvol"

// writeChart packs the chart under the release's version. Helm's own package command writes the
// time of the day into the archive.
func writeChart(o *options, dir string) error {
	chart := filepath.Join(o.root, "deploy", "charts", chartName)
	var files []archived
	if err := o.addChartFiles(&files, chart); err != nil {
		return err
	}
	text, err := archive(files)
	if err != nil {
		return err
	}
	return write(dir, chartName+"-"+o.number()+".tgz", text)
}

// addChartFiles adds the chart's files. Helm would follow a link, others leave it out: it is refused.
func (o *options) addChartFiles(files *[]archived, chart string) error {
	root, err := os.OpenRoot(chart)
	if err != nil {
		return err
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		if !entry.Type().IsRegular() {
			return fmt.Errorf("%s of the chart is no plain file", name)
		}
		content, err := root.ReadFile(name)
		if err == nil {
			content, err = o.chartFile(name, content)
		}
		if err != nil {
			return err
		}
		*files = append(*files, archived{path.Join(chartName, name), content, 0o644})
		return nil
	})
}

// chartFile returns a file of the chart with the release's version.
func (o *options) chartFile(name string, content []byte) ([]byte, error) {
	if name != "Chart.yaml" {
		return content, nil
	}
	lines := [][2]string{
		{`version: `, o.number()},
		{`appVersion: `, o.version},
		{`  artifacthub.io/prerelease: `, fmt.Sprintf("%q", fmt.Sprint(!o.final()))},
	}
	for _, p := range o.programs {
		lines = append(lines, [2]string{`.*image: ` + regexp.QuoteMeta(registry+p.name) + `:`, o.version})
	}
	for _, line := range lines {
		pattern := regexp.MustCompile(`(?m)^(` + line[0] + `).*$`)
		if found := len(pattern.FindAllIndex(content, -1)); found != 1 {
			return nil, fmt.Errorf("%s has %d lines that match %q, not one", name, found, pattern)
		}
		content = pattern.ReplaceAll(content, []byte("${1}"+line[1]))
	}
	return content, nil
}

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
	err := errors.Join(writer.Close(), compressor.Close())
	return stream.Bytes(), err
}
