package integration

import (
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

const (
	manyVolumes = 500
	// catchUp is how long a start with that many may take until all are current, beside
	// what it takes this process to get all objects.
	catchUp     = 3 * time.Second
	manyReaders = 4
	// readInterval leaves the machine to the plugin, most of the time.
	readInterval = 10 * time.Millisecond
)

// many is a node with many volumes, each of an object of its own.
type many struct {
	*supervisedNode
	volumes []*harness.Volume
	shapes  []*shape
	// generations is what each volume has to show.
	generations []int
}

// newMany starts a node with many volumes.
func newMany(t *testing.T, count int) *many {
	t.Helper()
	// What makes, shows or removes a mount; all other calls are as fast as ever.
	calls := []string{"fsmount", "move_mount", "mount", "umount2"}
	m := &many{supervisedNode: newNodeSupervisedAt(t, calls, "-v=2")}
	padding := m.canary()
	for i := range count {
		o := &object{kind: []string{"configMap", "secret"}[i%2], name: fmt.Sprint("app-", i), padding: padding}
		s := &shape{name: o.name, strategy: "Atomic", objects: []*object{o}}
		m.shapes, m.generations = append(m.shapes, s), append(m.generations, 1)
		m.volumes = append(m.volumes, m.volume(s.attributes()))
		m.put(i)
	}
	if err := inParallel(count, 16, func(i int) error { return m.Publish(t.Context(), m.volumes[i]) }); err != nil {
		t.Fatal(err)
	}
	return m
}

// put writes the object of a volume at its generation.
func (m *many) put(i int) {
	o := m.shapes[i].objects[0]
	m.putObject(o.kind, o.name, o.data(m.generations[i]))
}

// remove deletes the object of a volume.
func (m *many) remove(i int) {
	m.removeObject(m.shapes[i].objects[0].kind, m.shapes[i].objects[0].name)
}

// getAll gets every object that there is, some at a time, and returns how long that took.
func (m *many) getAll() time.Duration {
	m.t.Helper()
	begin := time.Now()
	err := inParallel(len(m.shapes), 16, func(i int) (err error) {
		core := shared.Client().CoreV1()
		if o := m.shapes[i].objects[0]; o.kind == "secret" {
			_, err = core.Secrets(m.namespace).Get(m.t.Context(), o.name, metav1.GetOptions{})
		} else {
			_, err = core.ConfigMaps(m.namespace).Get(m.t.Context(), o.name, metav1.GetOptions{})
		}
		if apierrors.IsNotFound(err) {
			return nil // deleted meanwhile
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return time.Since(begin)
}

// changeMeanwhile changes, deletes, and recreates objects by turns, and leaves every
// fourth as it is.
func (m *many) changeMeanwhile() {
	m.t.Helper()
	for i := range m.volumes {
		switch i / 2 % 4 { // of either kind
		case 1:
			m.generations[i]++
			m.put(i)
		case 2:
			m.remove(i) // the volume keeps its files
		case 3:
			m.remove(i)
			m.generations[i]++
			m.put(i)
		}
	}
}

// allCurrent waits until each volume shows what it has to.
func (m *many) allCurrent(within time.Duration) {
	m.t.Helper()
	i := 0 // those before are current
	harness.Eventually(m.t, within, func() error {
		for ; i < len(m.volumes); i++ {
			o := m.shapes[i].objects[0]
			for key, want := range o.data(m.generations[i]) {
				if got, err := m.content(m.volumes[i], key); err != nil || got != want {
					return fmt.Errorf("volume %d: %s holds %q, %w, want %q", i, key, got, cmpErr(err), want)
				}
			}
		}
		return nil
	})
}

// allPruned waits until the plugin has nothing left to do.
func (m *many) allPruned() {
	m.t.Helper()
	i := 0
	harness.Eventually(m.t, soon, func() error {
		for ; i < len(m.volumes); i++ {
			if err := m.pruned(m.volumes[i]); err != nil {
				return fmt.Errorf("volume %d: %w", i, err)
			}
		}
		return nil
	})
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

func (m *many) mountIDs() map[string]string {
	m.t.Helper()
	mounts, err := m.VolumeMounts()
	if err != nil {
		m.t.Fatal(err)
	}
	ids := make(map[string]string, len(mounts))
	for _, mount := range mounts {
		ids[mount.Target] = mount.ID
	}
	return ids
}

// read has all volumes read by several readers; the returned function ends that.
func (m *many) read() (finish func()) {
	m.t.Helper()
	seen := &reads{}
	var witnesses [manyReaders][]*witness
	for i, v := range m.volumes {
		witnesses[i%manyReaders] = append(witnesses[i%manyReaders], newWitness(m.shapes[i], m.Target(v), false, seen))
	}
	var readings []*reading
	for _, w := range witnesses {
		readings = append(readings, startReading(m.t, readInterval, w...))
	}
	return func() {
		m.t.Helper()
		for _, r := range readings {
			if err := r.finish(); err != nil {
				m.t.Errorf("a reader saw: %v", err)
			}
		}
		if err := seen.check(); err != nil {
			m.t.Error(err)
		}
		m.t.Log(seen)
	}
}

// TestRestartWithManyVolumes kills the plugin, changes what its volumes show, and starts
// it again: all is current soon, and not a mount was touched for it.
func TestRestartWithManyVolumes(t *testing.T) {
	m := newMany(t, manyVolumes)
	before := m.mountIDs()
	if len(before) != manyVolumes {
		t.Fatalf("%d mounts, want %d", len(before), manyVolumes)
	}
	bare := m.getAll()
	m.mustKill()
	m.changeMeanwhile()
	finish := m.read()
	m.Arm(supervise.CountOnly)
	begin := time.Now()
	m.mustStart()
	serving := time.Since(begin)
	m.allCurrent(soon)
	took := time.Since(begin)
	bare = max(bare, m.getAll()) // the machine may be busier at one time
	t.Logf("%d volumes: serving after %s, all current %s after the exec; %s of CPU time; the objects alone took the test %s",
		manyVolumes, serving, took, m.cpuTime(), bare)
	limit := catchUp + 5*bare
	if os.Getenv(harness.EmulatedVariable) != "" {
		limit *= 4 // the plugin's work takes some twenty times as long, the API server's does not
	}
	if took > limit {
		t.Errorf("that took %s, want %s at most", took, limit)
	}
	m.allPruned()
	finish()
	calls, _ := m.Disarm()
	m.wantNoMountMoved(calls)
	if after := m.mountIDs(); !maps.Equal(before, after) {
		t.Error("the ids of the mounts are not what they were")
	}
	m.wantBareDisk()
}

// wantNoMountMoved checks that none of the calls made or removed a mount that somebody
// can see.
func (m *many) wantNoMountMoved(calls []supervise.Call) {
	m.t.Helper()
	byName := map[string]int{}
	for _, c := range calls {
		byName[c.Name]++
		if c.Name != "fsmount" {
			m.t.Errorf("in the start and after it: %s", c)
		}
	}
	m.t.Logf("%d calls: %v", len(calls), byName)
	// By which the plugin probes at its start what the kernel grants.
	if byName["fsmount"] == 0 {
		m.t.Error("no call was counted at all")
	}
}
