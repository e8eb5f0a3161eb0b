package main

import (
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"go/version"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// registry is where the images are. An image is named as its program.
const registry = "ghcr.io/refvol/"

// release makes everything in a directory of its own and puts that in the place of the output, so
// that a release is whole or not there.
func release(ctx context.Context, o *options) error {
	dir := o.output + ".new"
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	defer os.RemoveAll(dir) // fails after the rename
	built, err := buildAll(ctx, o, dir)
	if err != nil {
		return err
	}
	if err := writeAll(ctx, o, dir, built); err != nil {
		return err
	}
	if err := os.RemoveAll(o.output); err != nil {
		return err
	}
	return os.Rename(dir, o.output)
}

// writeAll writes into dir all that a release has beside the binaries, which are there.
func writeAll(ctx context.Context, o *options, dir string, built []binary) error {
	for _, step := range []struct {
		what string
		do   func() error
	}{
		{"images", func() error { return packImages(ctx, o, dir, built) }},
		{"bills of materials", func() error { return writeBills(o, dir, built) }},
		{"archives for krew", func() error { return writeKrew(o, dir, built) }},
		{"chart", func() error { return writeChart(o, dir) }},
		{"checksums", func() error { return writeChecksums(dir) }},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return nil
}

type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "_" + p.arch }

type program struct {
	name      string
	platforms []platform
	// krew says that users install it as a plugin of kubectl.
	krew bool
}

// programs are all that a release has, each with an image.
func programs() []program {
	linux := []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	return []program{
		{name: "kubectl-refvol", platforms: append(linux, platform{"darwin", "amd64"}, platform{"darwin", "arm64"}, platform{"windows", "amd64"}), krew: true},
		{name: "refvol-notify", platforms: linux},
		{name: "refvol-plugin", platforms: linux},
	}
}

type binary struct {
	program
	platform
	path string
}

func buildAll(ctx context.Context, o *options, dir string) ([]binary, error) {
	var built []binary
	for _, p := range o.programs {
		for _, on := range p.platforms {
			b := binary{p, on, filepath.Join(dir, p.name+"_"+on.String())}
			if on.os == "windows" {
				b.path += ".exe"
			}
			if err := runMake(ctx, o, []string{"GOOS=" + on.os, "GOARCH=" + on.arch}, "build-program", "PROGRAM="+p.name, "OUT="+b.path); err != nil {
				return nil, fmt.Errorf("build %s for %s: %w", p.name, on, err)
			}
			if err := o.checkGo(b); err != nil {
				return nil, err
			}
			built = append(built, b)
		}
	}
	return built, nil
}

// checkGo refuses a binary that was built by an older Go than the checkout names: its standard library has faults that are
// mended.
func (o *options) checkGo(b binary) error {
	goMod, err := os.ReadFile(filepath.Join(o.root, "go.mod"))
	if err != nil {
		return err
	}
	needed := regexp.MustCompile(`(?m)^toolchain (go\S+)$`).FindSubmatch(goMod)
	if needed == nil {
		return errors.New("go.mod names no toolchain")
	}
	info, err := buildinfo.ReadFile(b.path)
	if err != nil {
		return err
	}
	if version.Compare(info.GoVersion, string(needed[1])) < 0 {
		return fmt.Errorf("%s is built by %s: a release takes %s or newer (GOTOOLCHAIN=auto fetches it)", b.path, info.GoVersion, needed[1])
	}
	return nil
}

// packImages makes one image of each program, for all of its architectures of Linux.
func packImages(ctx context.Context, o *options, dir string, built []binary) error {
	for _, p := range o.programs {
		var paths []string
		for _, b := range built {
			if b.name == p.name && b.os == "linux" {
				paths = append(paths, b.path)
			}
		}
		if err := runMake(ctx, o, nil, "pack", "PROGRAM="+p.name, "BINARIES="+strings.Join(paths, " "),
			"ARCHIVE="+filepath.Join(dir, p.name+"-image.tar"), "IMAGE="+registry+p.name+":"+o.version); err != nil {
			return fmt.Errorf("pack %s: %w", p.name, err)
		}
	}
	return nil
}

// runMake runs a target of the checkout's Makefile, with env added to the environment.
func runMake(ctx context.Context, o *options, env []string, args ...string) error {
	cmd := exec.CommandContext(ctx, "make")
	cmd.Args = append(append(cmd.Args, "--no-print-directory", "-C", o.root, "VERSION="+o.version, "REVISION="+o.revision), args...)
	cmd.Env = append(os.Environ(), env...)
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", cmd, errors.Join(err, ctx.Err()), output)
	}
	return nil
}

func write(dir, name string, content []byte) error {
	return os.WriteFile(filepath.Join(dir, name), content, fs.FileMode(0o644))
}

func writeChecksums(dir string) error {
	entries, err := os.ReadDir(dir) // in the order of the names
	if err != nil {
		return err
	}
	var lines strings.Builder
	for _, e := range entries {
		content, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sha256.Sum256(content), e.Name())
	}
	return write(dir, "SHA256SUMS", []byte(lines.String()))
}
