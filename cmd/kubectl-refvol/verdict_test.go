package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/status"
)

// TestVerdictNamesWhatDoesNotLag: each group of volumes and pods that are no laggards has its own line.
func TestVerdictNamesWhatDoesNotLag(t *testing.T) {
	pod := func(name string) status.Pod { return status.Pod{Namespace: "shop", Name: name} }
	waiting := make([]fleet.UnpublishedPod, 7)
	for i := range waiting {
		waiting[i] = fleet.UnpublishedPod{Node: "n", Pod: pod(strings.Repeat("w", i+1))}
	}
	v := &fleet.Result{
		ObservedAt: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC),
		APIVersion: status.APIVersion, Kind: fleet.ResultKind, Object: fleet.Object{Kind: "Secret", Namespace: "shop", Name: "db"}, Current: &status.Version{UID: "u", ResourceVersion: "8"}, Converged: true,
		Withdrawn:     []fleet.WithdrawnVolume{{Node: "n", Pod: pod("borrower\x1b[2J"), Volume: "settings"}},
		WithoutPlugin: waiting,
		NotPublished:  []fleet.UnpublishedPod{{Pod: pod("late")}},
	}
	var out bytes.Buffer
	if err := printVerdict(&out, true, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2026-01-01T12:00:00Z Converged: yes. ",
		"\nVolumes from which the object was withdrawn, because their pods may not have it any more: volume settings of shop/borrower\\u001b[2J.\n",
		"\nPods that wait on a node without the plugin, so that nothing is mounted for them: shop/w, shop/ww, shop/www, shop/wwww, shop/wwwww, and 2 more.\n",
		"\nPods whose volumes are not published yet, or wait for something, and that get the current version then: shop/late.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing:\n%s", want, &out)
		}
	}
	out.Reset()
	opts := &convergedOptions{output: newOutput(&cobra.Command{})}
	*opts.output.OutputFormat = "json"
	if err := opts.validate(); err != nil {
		t.Fatal(err)
	}
	if err := opts.print(&out, []*fleet.Result{v}); err != nil {
		t.Fatal(err)
	}
	read := &fleet.Result{}
	if err := json.Unmarshal(out.Bytes(), read); err != nil || len(read.Withdrawn) != 1 || read.Withdrawn[0] != v.Withdrawn[0] || len(read.WithoutPlugin) != 7 {
		t.Errorf("got %+v, %v", read, err)
	}
}
