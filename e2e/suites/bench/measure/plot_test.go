package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWritePlot(t *testing.T) {
	f := File{Results: []Result{
		{Name: "native.kubelet_ms", N: 15, P50: new(45850.8), Max: new(77863.0)},
		{Name: "native.refvol_ms", N: 15, P50: new(7.23), Max: new(12.46)},
	}}
	path := filepath.Join(t.TempDir(), "plot.svg")
	if err := f.WritePlot(path); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"<svg", "median 45.9 s, slowest of 15 77.9 s", "median 7.23 ms, slowest of 15 12.5 ms", "kubelet", "refvol"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the plot has no %q", want)
		}
	}
	if err := (File{Results: f.Results[:1]}).WritePlot(path); err == nil || err.Error() != "native.refvol_ms: no such result" {
		t.Errorf("without a result: %v", err)
	}
}
