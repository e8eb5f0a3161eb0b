package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

// TestChangeArrivesAtOnce compares with a watch that does nothing. No resync brings what
// the plugin missed.
func TestChangeArrivesAtOnce(t *testing.T) {
	n := newNode(t, "--resync-interval=1h")
	n.configMap("app", map[string]string{"key": n.canary()})
	n.secret("app", map[string]string{"password": n.canary()})
	v := n.volume(map[string]string{"sources": "- configMap: {name: app}\n- secret: {name: app}\n"})
	n.mustPublish(v)
	bare, err := harness.WatchBare(t.Context(), shared.Client(), n.namespace, "app")
	if err != nil {
		t.Fatal(err)
	}
	var took, bareTook []time.Duration
	for range 10 {
		key, password := n.canary(), n.canary()
		begin := time.Now()
		version := n.configMap("app", map[string]string{"key": key}).ResourceVersion
		// From the answer of the API server on: what its write takes is not the plugin's.
		took = append(took, n.arrives(v, "key", key, soon))
		at, err := bare.Arrived(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		bareTook = append(bareTook, at.Sub(begin))
		n.secret("app", map[string]string{"password": password})
		took = append(took, n.arrives(v, "password", password, soon))
	}
	t.Logf("changes arrived after %v, at a watch of the test after %v", took, bareTook)
	limit := 250*time.Millisecond + 10*harness.Median(bareTook)
	if median := harness.Median(took); median > limit {
		t.Errorf("a change took %s, want %s at most", median, limit)
	}
}

func TestKeysComeAndGo(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	stays := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "goes": n.canary()})
	v := n.short("app")
	n.mustPublish(v)

	comes := n.canary()
	n.configMap("app", map[string]string{"stays": stays, "comes": comes})
	n.arrives(v, "comes", comes, soon)
	n.vanishes(v, "goes", soon)
	n.configMap("app", nil)
	n.vanishes(v, "comes", soon)
	n.vanishes(v, "stays", soon)
	if files, err := harness.Files(n.Target(v)); err != nil || len(files) != 0 {
		t.Errorf("files of an empty object = %v, %v, want none", files, err)
	}
}

// TestReadersSeeWholeGenerations reads both files through one handle on ..data,
// while they change together, and must never see one file of one version and one of
// another.
func TestReadersSeeWholeGenerations(t *testing.T) {
	n := newNode(t)
	set := func(value string) { n.configMap("app", map[string]string{"a": value, "b": value}) }
	set(n.canary())
	v := n.short("app")
	n.mustPublish(v)

	ctx, stop := context.WithCancel(t.Context())
	result := make(chan error, 1)
	var seen reads
	go func() {
		for ctx.Err() == nil {
			begin := time.Now()
			if err := seen.count(begin, readPair(n.Target(v))); err != nil {
				result <- err
				return
			}
		}
		result <- nil
	}()
	for range 50 {
		value := n.canary()
		set(value)
		n.arrives(v, "a", value, soon)
	}
	stop()
	if err := errors.Join(<-result, seen.check()); err != nil {
		t.Error(err)
	}
	t.Log(&seen)
}

// readPair opens the current generation once and compares its two files.
func readPair(dir string) error {
	fd, err := unix.Open(filepath.Join(dir, "..data"), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return gone("open ..data", err)
	}
	defer unix.Close(fd)
	var values [2]string
	for i, name := range []string{"a", "b"} {
		data, err := os.ReadFile(fmt.Sprintf("/proc/self/fd/%d/%s", fd, name))
		if err != nil {
			return gone("read a generation", err)
		}
		values[i] = string(data)
	}
	if values[0] != values[1] {
		return fmt.Errorf("one generation holds %q and %q", values[0], values[1])
	}
	return nil
}

// TestOldGenerationGoesSoon makes sure that a value that was replaced, and may have
// been revoked, does not stay in memory.
func TestOldGenerationGoesSoon(t *testing.T) {
	n := newNode(t)
	n.configMap("app", map[string]string{"key": n.canary()})
	v := n.short("app")
	n.mustPublish(v)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.arrives(v, "key", value, soon)
	harness.Eventually(t, soon, func() error {
		entries, err := harness.List(n.Target(v))
		if err == nil && len(entries) != 4 { // the generation, its file, ..data and the link
			err = fmt.Errorf("the volume has %d names, want 4: %+v", len(entries), entries)
		}
		return err
	})
}

func TestDeletedRequiredObjectKeepsTheFiles(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	n.configMap("beacon", map[string]string{"beacon": "0"})
	v := n.volume(map[string]string{"sources": "- configMap: {name: app}\n"})
	beacon := n.short("beacon")
	n.mustPublish(v)
	n.mustPublish(beacon)
	n.deleteConfigMap("app")
	// Once a later change of another object has arrived, the deletion has, too.
	n.configMap("beacon", map[string]string{"beacon": "1"})
	n.arrives(beacon, "beacon", "1", soon)
	n.wantContent(v, "key", value)

	// Under the same name comes another object; it is followed.
	again := n.canary()
	n.configMap("app", map[string]string{"key": again})
	n.arrives(v, "key", again, soon)
}

func TestImmutableRecreatedIsSeenByTheNextPod(t *testing.T) {
	n := newNode(t)
	immutable := func(value string) {
		yes := true
		n.applyConfigMap(&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: "app"},
			Immutable:  &yes,
			Data:       map[string]string{"key": value},
		})
	}
	before, after := n.canary(), n.canary()
	immutable(before)
	first := n.short("app")
	n.mustPublish(first)
	n.deleteConfigMap("app")
	immutable(after)
	second := n.short("app")
	n.mustPublish(second)
	n.wantContent(second, "key", after)
	n.arrives(first, "key", after, soon)
}

func TestOneWatchPerObject(t *testing.T) {
	n := newNode(t)
	before := watches(t.Context(), t, "configmaps")
	n.configMap("app", map[string]string{"key": n.canary()})
	n.configMap("other", map[string]string{"key": n.canary()})
	var volumes []*harness.Volume
	for range 20 {
		v := n.short("app")
		n.mustPublish(v)
		volumes = append(volumes, v)
	}
	wantWatches(t, "configmaps", before+1)
	both := n.volume(map[string]string{"sources": "- configMap: {name: app}\n- configMap: {name: other, items: [{key: key, path: other}]}\n"})
	n.mustPublish(both)
	wantWatches(t, "configmaps", before+2)
	n.mustUnpublish(both)
	wantWatches(t, "configmaps", before+1)
	for _, v := range volumes {
		n.mustUnpublish(v)
	}
	wantWatches(t, "configmaps", before)
	n.wantNothingLeft()
}

func TestVolumesOfOnePodAreIndependent(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	value := n.canary()
	n.configMap("app", map[string]string{"key": value})
	first, second := n.short("app"), n.short("app")
	second.UID, second.Name = first.UID, "other"
	n.mustPublish(first)
	n.mustPublish(second)
	n.mustUnpublish(first)
	changed := n.canary()
	n.configMap("app", map[string]string{"key": changed})
	n.arrives(second, "key", changed, soon)
	n.mustUnpublish(second)
	n.wantNothingLeft()
}

func TestOneFailingVolumeHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	n := newNode(t, "--max-volume-size=64Ki")
	n.configMap("small", map[string]string{"key": "0"})
	n.configMap("growing", map[string]string{"key": "0"})
	small, growing := n.short("small"), n.short("growing")
	n.mustPublish(small)
	n.mustPublish(growing)
	n.configMap("growing", map[string]string{"key": string(make([]byte, 128<<10))})
	n.configMap("small", map[string]string{"key": "1"})
	n.arrives(small, "key", "1", soon)
	n.wantContent(growing, "key", "0")
	n.configMap("growing", map[string]string{"key": "2"})
	n.arrives(growing, "key", "2", soon)
}

func TestAPIServerOutage(t *testing.T) {
	n := newNode(t)
	before, after := n.canary(), n.canary()
	n.configMap("app", map[string]string{"key": before})
	v := n.short("app")
	n.mustPublish(v)
	if err := shared.StopAPIServer(); err != nil {
		t.Fatal(err)
	}
	n.wantContent(v, "key", before)
	if err := shared.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.configMap("app", map[string]string{"key": after})
	took := n.arrives(v, "key", after, healed)
	t.Logf("the first change after the outage arrived in %s", took)
}
