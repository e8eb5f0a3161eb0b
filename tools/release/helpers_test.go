package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
)

// checkout returns the directory of the checkout.
func checkout(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// lines returns the lines of a file.
func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(read(t, dir, name)), "\n"), "\n")
}

// untar returns the files of a tar archive, compressed or not.
func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	var stream io.Reader = bytes.NewReader(archive)
	if bytes.HasPrefix(archive, []byte{0x1f, 0x8b}) {
		uncompressed, err := gzip.NewReader(stream)
		if err != nil {
			t.Fatal(err)
		}
		stream = uncompressed
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}
