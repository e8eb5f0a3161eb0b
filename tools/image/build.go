package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// buildAll returns an image of each binary. Two of one architecture are an error.
func buildAll(opts *options) ([]v1.Image, error) {
	var images []v1.Image
	of := map[string]string{}
	for _, file := range opts.binaries {
		binary, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		architecture, err := architectureOf(binary)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if other := of[architecture]; other != "" {
			return nil, fmt.Errorf("%s and %s are both for %s", other, file, architecture)
		}
		of[architecture] = file
		image, err := build(opts, binary, architecture)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		images = append(images, image)
	}
	return images, nil
}

// build returns an image that holds nothing but the binary, and runs it as the user.
func build(opts *options, binary []byte, architecture string) (v1.Image, error) {
	files, err := layerOf(binary, opts.entrypoint)
	if err != nil {
		return nil, fmt.Errorf("make the layer: %w", err)
	}
	open := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil }
	layer, err := tarball.LayerFromOpener(open, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, fmt.Errorf("compress the layer: %w", err)
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: architecture,
		Created:      v1.Time{Time: epoch()},
		RootFS:       v1.RootFS{Type: "layers"},
		Config: v1.Config{
			User:       opts.user,
			WorkingDir: "/",
			Entrypoint: []string{opts.entrypoint},
			Labels:     opts.labels,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("configure the image: %w", err)
	}
	return mutate.Append(image, mutate.Addendum{
		Layer:   layer,
		History: v1.History{Created: v1.Time{Time: epoch()}, CreatedBy: "image -entrypoint " + opts.entrypoint},
	})
}

// epoch is the only time in an image, so that the time of a build does not show.
func epoch() time.Time { return time.Unix(0, 0).UTC() }

// architectureOf returns the binary's architecture as images name it. An image
// without a dynamic linker can't run a binary that asks for one, which is an error.
func architectureOf(binary []byte) (string, error) {
	file, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return "", fmt.Errorf("not a Linux binary: %w", err)
	}
	defer file.Close()
	for _, program := range file.Progs {
		if program.Type == elf.PT_INTERP {
			return "", fmt.Errorf("dynamically linked: build it with CGO_ENABLED=0")
		}
	}
	switch file.Machine {
	case elf.EM_X86_64:
		return "amd64", nil
	case elf.EM_AARCH64:
		return "arm64", nil
	}
	return "", fmt.Errorf("unsupported machine %s", file.Machine)
}

// layerOf returns a tar stream with the binary at target and the directories above.
func layerOf(binary []byte, target string) ([]byte, error) {
	var stream bytes.Buffer
	writer := tar.NewWriter(&stream)
	target = strings.TrimPrefix(target, "/")
	for i, c := range target {
		if c != '/' {
			continue
		}
		header := &tar.Header{Typeflag: tar.TypeDir, Name: target[:i+1], Mode: 0o755, ModTime: epoch()}
		if err := writer.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	if err := writeFile(writer, path.Clean(target), binary, 0o755); err != nil {
		return nil, err
	}
	return stream.Bytes(), writer.Close()
}

func writeFile(writer *tar.Writer, name string, content []byte, mode int64) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(content)), Mode: mode, ModTime: epoch()}
	if err := writer.WriteHeader(header); err != nil {
		return err
	}
	_, err := writer.Write(content)
	return err
}
