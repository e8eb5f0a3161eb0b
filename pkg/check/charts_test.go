package check

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestCharts compares the command's output for each manifest. The manifests imitate those of public charts and repositories.
func TestCharts(t *testing.T) {
	files, err := os.ReadDir("testdata/charts")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d manifests, %v", len(files), err)
	}
	var got bytes.Buffer
	for _, file := range files {
		c, err := New(Options{Driver: driver, Namespace: "ns", NodeIdentity: true})
		if err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join("testdata/charts", file.Name()))
		if err != nil {
			t.Fatal(err)
		}
		got.WriteString("# " + file.Name() + "\n")
		if err := c.Add(t.Context(), file.Name(), bytes.NewReader(text)); err != nil {
			t.Fatal(err)
		}
		if err := c.Report().WriteText(&got); err != nil {
			t.Fatal(err)
		}
		got.WriteString("\n")
	}
	want, err := os.ReadFile("testdata/charts.txt")
	if err != nil || got.String() != string(want) {
		t.Errorf("%v; got, for testdata/charts.txt:\n%s", err, &got)
	}
}
