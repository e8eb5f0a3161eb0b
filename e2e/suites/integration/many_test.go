package integration

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// TestRestartWithManyVolumes kills the plugin, changes what its volumes show, each of an object of its own, and starts
// it again: all is current soon, and not a mount was touched for it.
func TestRestartWithManyVolumes(t *testing.T) {
	const count, readers = 500, 4
	// What makes, shows or removes a mount; all other calls are as fast as ever.
	n := newNodeSupervisedAt(t, []string{"fsmount", "move_mount", "mount", "umount2"}, "-v=2")
	things, volumes, seen := make([]*thing, count), make([]*harness.Volume, count), &reads{}
	var witnesses [readers][]*witness
	for i := range count {
		things[i] = n.newThing([]string{"configMap", "secret"}[i%2], fmt.Sprint("app-", i))
		s := &shape{name: things[i].name, strategy: "Atomic", objects: []*object{things[i].object}}
		volumes[i] = n.volume(s.attributes())
		witnesses[i%readers] = append(witnesses[i%readers], newWitness(s, n.Target(volumes[i]), false, seen))
	}
	if err := inParallel(count, 16, func(i int) error { return n.Publish(t.Context(), volumes[i]) }); err != nil {
		t.Fatal(err)
	}
	before := n.mountIDs()
	if len(before) != count {
		t.Fatalf("%d mounts, want %d", len(before), count)
	}
	bare := n.getAll(things)
	n.mustKill()
	for i, o := range things { // every fourth of either kind stays as it is; a volume keeps the files of what is deleted
		if change := i / 2 % 4; change == 1 {
			o.write()
		} else if change > 1 {
			o.delete()
			if change == 3 {
				o.write()
			}
		}
	}
	var readings []*reading
	for _, w := range witnesses { // which leave the machine to the plugin, most of the time
		readings = append(readings, startReading(t, 10*time.Millisecond, w...))
	}
	n.Arm(supervise.CountOnly)
	begin := time.Now()
	n.mustStart()
	serving := time.Since(begin)
	n.each(volumes, func(i int) error {
		for key, want := range things[i].data(things[i].generation) {
			if got, err := n.content(volumes[i], key); err != nil || got != want {
				return fmt.Errorf("%s holds %q, %w, want %q", key, got, cmpErr(err), want)
			}
		}
		return nil
	})
	took := time.Since(begin)
	bare = max(bare, n.getAll(things)) // the machine may be busier at one time
	t.Logf("%d volumes: serving after %s, all current %s after the exec; %s of CPU time; the objects alone took the test %s",
		count, serving, took, n.cpuTime(), bare)
	// It takes a second or two on a machine of its own. make bench judges the time.
	limit := 20*time.Second + 5*bare
	if os.Getenv(harness.EmulatedVariable) != "" {
		limit *= 4 // the plugin's work takes some twenty times as long, the API server's does not
	}
	if took > limit {
		t.Errorf("that took %s, want %s at most", took, limit)
	}
	n.each(volumes, func(i int) error { return n.pruned(volumes[i]) })
	for _, r := range readings {
		if err := r.finish(); err != nil {
			t.Errorf("a reader saw: %v", err)
		}
	}
	if err := seen.check(); err != nil {
		t.Error(err)
	}
	calls, _ := n.Disarm()
	t.Logf("%s; calls: %v", seen, calls)
	// By fsmount the plugin probes at its start what the kernel grants.
	if len(calls) == 0 || slices.ContainsFunc(calls, func(c supervise.Call) bool { return c.Name != "fsmount" }) {
		t.Errorf("in the start and after it: %v, want fsmount alone", calls)
	}
	if after := n.mountIDs(); !maps.Equal(before, after) {
		t.Error("the ids of the mounts are not what they were")
	}
	n.wantBareDisk()
}

// each waits until f returns nil for the number of each volume.
func (n *node) each(volumes []*harness.Volume, f func(i int) error) {
	n.t.Helper()
	within := soon
	if os.Getenv(harness.EmulatedVariable) != "" {
		within *= 4 // the first volume may be the last to become current
	}
	for i := range volumes {
		harness.Eventually(n.t, within, func() error {
			if err := f(i); err != nil {
				return fmt.Errorf("volume %d: %w", i, err)
			}
			return nil
		})
	}
}

// getAll gets every object that there is, some at a time, and returns how long that took.
func (n *node) getAll(things []*thing) time.Duration {
	n.t.Helper()
	begin := time.Now()
	err := inParallel(len(things), 16, func(i int) error {
		resource := map[string]string{"secret": "secrets", "configMap": "configmaps"}[things[i].kind]
		err := shared.Client().CoreV1().RESTClient().Get().Namespace(n.namespace).Resource(resource).Name(things[i].name).Do(n.t.Context()).Error()
		if apierrors.IsNotFound(err) {
			return nil // deleted meanwhile
		}
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
	return time.Since(begin)
}

// cpuTime returns what the plugin has used since its start, which says more than the
// clock does on a machine that is busy with something else.
func (n *node) cpuTime() time.Duration {
	n.t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", n.PID()))
	if err != nil {
		n.t.Fatal(err)
	}
	_, fields, _ := strings.Cut(string(stat), ") ")
	const user, system = 11, 12 // in ticks of 10 ms; the first after the name counts as 0
	var ticks [2]int
	for i, at := range []int{user, system} {
		if ticks[i], err = strconv.Atoi(strings.Fields(fields)[at]); err != nil {
			n.t.Fatal(err)
		}
	}
	return time.Duration(ticks[0]+ticks[1]) * 10 * time.Millisecond
}

func (n *node) mountIDs() map[string]string {
	n.t.Helper()
	mounts, err := n.VolumeMounts()
	if err != nil {
		n.t.Fatal(err)
	}
	ids := make(map[string]string, len(mounts))
	for _, mount := range mounts {
		ids[mount.Target] = mount.ID
	}
	return ids
}
