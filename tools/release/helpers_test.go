package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
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

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
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

// readImage reads the image of one architecture from an archive.
func readImage(t *testing.T, path string) image {
	t.Helper()
	archive, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	blobs := untar(t, archive)
	var manifests []struct {
		Config string
		Layers []string
	}
	if err := json.Unmarshal(blobs["manifest.json"], &manifests); err != nil || len(manifests) != 1 || len(manifests[0].Layers) != 1 {
		t.Fatalf("manifest.json: %v, %+v", err, manifests)
	}
	var config struct{ Config imageConfig }
	if err := json.Unmarshal(blobs[manifests[0].Config], &config); err != nil {
		t.Fatal(err)
	}
	return image{untar(t, blobs[manifests[0].Layers[0]]), config.Config}
}
