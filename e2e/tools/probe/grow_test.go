package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestGrowthCounts(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	highest := map[string]string{}
	var g growth
	for _, step := range []struct {
		text, missing string
		want          growth
	}{
		{"2", file, growth{Reads: 1}},
		{"3", file, growth{Reads: 2}},
		{"1", file, growth{Reads: 3, Back: 1}},
		{"", file, growth{Reads: 4, Back: 1, Failed: 1}},
		{"9", "", growth{Reads: 5, Back: 1, Failed: 1}},
	} {
		var err error
		if step.text == "" {
			err = os.Remove(file)
		} else {
			err = os.WriteFile(file, []byte(step.text), 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		missing := g.read([]string{file}, highest, "9")
		if got := (growth{Reads: g.Reads, Back: g.Back, Failed: g.Failed}); missing != step.missing || got != step.want {
			t.Errorf("after %q: missing %q, %+v, want %q, %+v", step.text, missing, g, step.missing, step.want)
		}
		if step.text == "1" && !strings.Contains(g.Error, `"1" after "3"`) {
			t.Errorf("error %q", g.Error)
		}
	}
}
