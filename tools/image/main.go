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
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
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
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return errors.New("must be key=value")
		}
		opts.labels[key] = value
		return nil
	})
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	return opts, opts.validate(flags.Args())
}

func (o *options) validate(rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("unexpected arguments %q", rest)
	}
	for flag, value := range map[string]string{"binary": strings.Join(o.binaries, ""), "reference": o.reference, "output": o.output} {
		if value == "" {
			return fmt.Errorf("-%s: required", flag)
		}
	}
	if !path.IsAbs(o.entrypoint) || path.Clean(o.entrypoint) != o.entrypoint || o.entrypoint == "/" {
		return fmt.Errorf("-entrypoint: %q must be a clean absolute path of a file", o.entrypoint)
	}
	if _, err := strconv.ParseUint(o.user, 10, 31); err != nil {
		return fmt.Errorf("-user: %q must be a number: the image has no names of users", o.user)
	}
	if _, err := name.NewTag(o.reference, name.StrictValidation); err != nil {
		return fmt.Errorf("-reference: %w", err)
	}
	return nil
}
