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

func checkout(t *testing.T) string {
	t.Helper()
	return must(filepath.Abs("../.."))(t)
}

func lines(t *testing.T, dir, name string) []string {
	t.Helper()
	return strings.Split(strings.TrimSuffix(string(read(t, dir, name)), "\n"), "\n")
}

func untar(t *testing.T, archive []byte) map[string][]byte {
	t.Helper()
	var stream io.Reader = bytes.NewReader(archive)
	if bytes.HasPrefix(archive, []byte{0x1f, 0x8b}) {
		stream = must(gzip.NewReader(stream))(t)
	}
	files := map[string][]byte{}
	for reader := tar.NewReader(stream); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		fatal(t, err)
		if files[header.Name], err = io.ReadAll(reader); err != nil {
			t.Fatal(err)
		}
	}
}

// must returns a value, or ends the test because of the error: must(f())(t).
func must[T any](value T, err error) func(t *testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		fatal(t, err)
		return value
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
