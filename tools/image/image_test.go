package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

const reference = "registry.example/team/tool:v1.2.3"

// binaryOf returns the header of an ELF binary for machine, and a program header of
// type program where that is not zero.
func binaryOf(machine elf.Machine, program elf.ProgType) []byte {
	header := elf.Header64{
		Type: uint16(elf.ET_EXEC), Machine: uint16(machine), Version: uint32(elf.EV_CURRENT),
		Ehsize: 64, Phentsize: 56, Phoff: 64,
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS] = byte(elf.ELFCLASS64)
	header.Ident[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	if program != elf.PT_NULL {
		header.Phnum = 1
	}
	var file bytes.Buffer
	for _, part := range []any{header, elf.Prog64{Type: uint32(program)}} {
		if err := binary.Write(&file, binary.LittleEndian, part); err != nil {
			panic(err)
		}
	}
	return file.Bytes()
}

func makeImage(t *testing.T, content []byte, args ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	file, output := filepath.Join(dir, "tool"), filepath.Join(dir, "out", "image.tar")
	fatal(t, os.WriteFile(file, content, 0o600))
	args = append([]string{"-binary", file, "-output", output, "-reference", reference, "-entrypoint", "/tool"}, args...)
	return output, run(args, io.Discard, io.Discard)
}

func TestBothReadersFindTheSameImage(t *testing.T) {
	content := binaryOf(elf.EM_AARCH64, 0)
	archive := must(makeImage(t, content, "-entrypoint", "/usr/bin/probe", "-user", "65532", "-label", "a=b=c", "-label", "d="))(t)
	tag := must(name.NewTag(reference))(t)
	docker, err := tarball.ImageFromPath(archive, &tag)
	if err != nil {
		t.Fatalf("read as a docker archive: %v", err)
	}
	index, entry := readLayout(t, archive)
	if got := entry.Annotations["org.opencontainers.image.ref.name"]; got != "v1.2.3" {
		t.Errorf("ref.name = %q, want v1.2.3", got)
	}
	if entry.ArtifactType != "" {
		t.Errorf("artifactType = %q, want none, as of an image", entry.ArtifactType)
	}
	oci := must(index.Image(entry.Digest))(t)
	for reader, image := range map[string]v1.Image{"docker": docker, "layout": oci} {
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatalf("%s: %v", reader, err)
		}
		if got := config.OS + "/" + config.Architecture; got != "linux/arm64" {
			t.Errorf("%s: platform = %s, want linux/arm64", reader, got)
		}
		if got := config.Config; !slices.Equal(got.Entrypoint, []string{"/usr/bin/probe"}) || got.User != "65532" || len(got.Cmd) > 0 {
			t.Errorf("%s: config = %+v, want entry point /usr/bin/probe and user 65532", reader, got)
		}
		if got := config.Config.Labels; len(got) != 2 || got["a"] != "b=c" || got["d"] != "" {
			t.Errorf("%s: labels = %v", reader, got)
		}
		if err := validate.Image(image); err != nil {
			t.Errorf("%s: %v", reader, err)
		}
		wantBinaryOnly(t, image, content)
	}
}

// An archive of several architectures has one name, for an index of their images.
func TestIndexOfSeveralArchitectures(t *testing.T) {
	dir := t.TempDir()
	archive := filepath.Join(dir, "image.tar")
	args := []string{"-reference", reference, "-output", archive, "-entrypoint", "/tool"}
	for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64} {
		file := filepath.Join(dir, machine.String())
		fatal(t, os.WriteFile(file, binaryOf(machine, 0), 0o600))
		args = append(args, "-binary", file)
	}
	fatal(t, run(args, io.Discard, io.Discard))
	index, entry := readLayout(t, archive)
	named := must(index.ImageIndex(entry.Digest))(t)
	images := must(named.IndexManifest())(t)
	var platforms []string
	for _, entry := range images.Manifests {
		platforms = append(platforms, entry.Platform.String())
	}
	if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
		t.Errorf("platforms = %q", platforms)
	}
	again := append(args, "-binary", args[len(args)-1])
	if err := run(again, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), "are both for arm64") {
		t.Errorf("two of one architecture: %v", err)
	}
}

// wantBinaryOnly wants the layer of an image to have the binary, the directories above it, and nothing else.
func wantBinaryOnly(t *testing.T, image v1.Image, content []byte) {
	t.Helper()
	layers, err := image.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("found %d layers, error %v, want 1", len(layers), err)
	}
	files := must(layers[0].Uncompressed())(t)
	var names []string
	for reader := tar.NewReader(files); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		fatal(t, err)
		names = append(names, header.Name)
		if header.Mode != 0o755 || header.Uid != 0 || header.Gid != 0 || header.ModTime.Unix() != 0 {
			t.Errorf("%s: mode %o, owner %d:%d, time %s, want root's 0755 of 1970", header.Name, header.Mode, header.Uid, header.Gid, header.ModTime)
		}
		if header.Typeflag == tar.TypeReg {
			if got, err := io.ReadAll(reader); err != nil || !bytes.Equal(got, content) {
				t.Errorf("%s: other content than the binary, error %v", header.Name, err)
			}
		}
	}
	if want := []string{"usr/", "usr/bin/", "usr/bin/probe"}; !slices.Equal(names, want) {
		t.Errorf("files = %q, want %q", names, want)
	}
}

func TestRefusals(t *testing.T) {
	static := binaryOf(elf.EM_X86_64, 0)
	for _, test := range []struct {
		name   string
		binary []byte
		args   []string
		want   string
	}{
		{"dynamically linked", binaryOf(elf.EM_X86_64, elf.PT_INTERP), nil, "dynamically linked"},
		{"not a binary", []byte("#!/bin/sh\n"), nil, "not a Linux binary"},
		{"unknown machine", binaryOf(elf.EM_68K, 0), nil, "unsupported machine EM_68K"},
		{"reference without a tag", static, []string{"-reference", "registry.example/team/tool"}, "-reference"},
		{"reference without a registry", static, []string{"-reference", "tool:v1"}, "-reference"},
		{"no output", static, []string{"-output", ""}, "-output: required"},
		{"missing binary", static, []string{"-binary", "/nonexistent"}, "/nonexistent"},
		{"stray argument", static, []string{"more"}, "unexpected arguments"},
	} {
		t.Run(test.name, func(t *testing.T) {
			archive, err := makeImage(t, test.binary, test.args...)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want one with %q", err, test.want)
			}
			if _, err := os.Stat(archive); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("an archive was written: %v", err)
			}
		})
	}
}

// readLayout reads an archive as an image layout, which must have one entry under the name of the image.
func readLayout(t *testing.T, archive string) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	dir := t.TempDir()
	if output, err := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir, "-f", archive).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatalf("read as an image layout: %v", err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("image layout: %v", err)
	}
	manifest, err := index.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations["io.containerd.image.name"] != reference {
		t.Fatalf("index = %+v, error %v, want one entry that containerd imports as %s", manifest, err, reference)
	}
	return index, manifest.Manifests[0]
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
