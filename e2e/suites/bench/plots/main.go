// Command plots draws what the benchmarks measured: latencies, memory, and a burst of
// publishes, as SVG files.
//
// It owns what the pictures show and look like. It must not know how anything was
// measured.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

func main() {
	if err := run(os.Args[1:], os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "plots:", err)
		os.Exit(1)
	}
}

// run draws every picture that there is data for. Those that there is none for are in
// the error, with what to run for them.
func run(args []string, usage io.Writer) error {
	flags := flag.NewFlagSet("plots", flag.ContinueOnError)
	flags.SetOutput(usage)
	results := flags.String("results", "results.json", "the `file` with the results of the benchmarks")
	samples := flags.String("samples", "samples.json", "the `file` with the samples of the benchmarks")
	out := flags.String("out", ".", "the `directory` that the pictures are written to")
	document := flags.String("document", "", "the Markdown `file` to put tables into; empty: none")
	if err := flags.Parse(args); err != nil {
		return err
	}
	d, err := readData(*results, *samples)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	var failed []error
	for _, p := range pictures() {
		drawing, err := p.draw(d)
		if err == nil {
			err = writeSVG(filepath.Join(*out, p.file), drawing)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.file, err))
		}
	}
	if *document != "" {
		failed = append(failed, writeTables(*document, d.file))
	}
	return errors.Join(failed...)
}

// picture is a file and what is drawn in it.
type picture struct {
	file string
	draw func(*data) (*drawing, error)
}

func pictures() []picture {
	return []picture{
		{"latency.svg", latency},
		{"memory.svg", memory},
		{"publish.svg", publish},
		{"burst.svg", burst},
	}
}
