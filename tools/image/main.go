// Command image makes a container image of one static binary, without a container
// engine, and writes it as a tar archive.
//
// The archive is an OCI image layout and a `docker save` archive at once, so that
// `docker load`, `podman load`, `ctr images import` and `kind load image-archive`
// all take it. With binaries of several architectures it is an image layout with an index of
// their images, which the form of `docker save` can't have. The same binaries and flags give
// the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "image:", err)
		}
		os.Exit(1)
	}
}

type options struct {
	// binaries are the files to put into an image each, one for each architecture.
	binaries []string
	// entrypoint is the absolute path of the binary in the image, which runs it.
	entrypoint string
	// reference is the image's name with a registry and a tag.
	reference string
	// output is the archive to write.
	output string
	// user is the number of the user that runs it.
	user   string
	labels map[string]string
}

// run makes the image that args describe and prints its reference and digest.
func run(args []string, stdout, stderr io.Writer) error {
	opts, err := parse(args, stderr)
	if err != nil {
		return err
	}
	images, err := buildAll(opts)
	if err != nil {
		return err
	}
	digest, err := writeArchive(opts.output, images, opts.reference)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(stdout, "%s: %s@%s\n", opts.output, opts.reference, digest)
	return err
}

func parse(args []string, stderr io.Writer) (*options, error) {
	opts := &options{labels: map[string]string{}}
	flags := flag.NewFlagSet("image", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Func("binary", "the statically linked `file` to run; repeated for further architectures", func(file string) error {
		opts.binaries = append(opts.binaries, file)
		return nil
	})
	flags.StringVar(&opts.entrypoint, "entrypoint", "", "its absolute `path` in the image")
	flags.StringVar(&opts.reference, "reference", "", "the image's `name`, with a registry and a tag")
	flags.StringVar(&opts.output, "output", "", "the archive `file` to write")
	flags.StringVar(&opts.user, "user", "0", "the `number` of the user that runs it")
	flags.Func("label", "a `key=value` to label the image with; may repeat", func(label string) error {
		key, value, _ := strings.Cut(label, "=")
		opts.labels[key] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("unexpected arguments %q", flags.Args())
	}
	for flag, value := range map[string]string{
		"binary": strings.Join(opts.binaries, ""), "entrypoint": opts.entrypoint, "reference": opts.reference, "output": opts.output,
	} {
		if value == "" {
			return nil, fmt.Errorf("-%s: required", flag)
		}
	}
	if _, err := name.NewTag(opts.reference, name.StrictValidation); err != nil {
		return nil, fmt.Errorf("-reference: %w", err)
	}
	return opts, nil
}

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
