package integration

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/refvol/refvol/e2e/tools/harness"
	"github.com/refvol/refvol/e2e/tools/supervise"
)

// killing runs one operation on a volume after another, and kills the plugin in the
// middle of each.
type killing struct {
	*supervisedNode
	shape *shape
	tally *tally
	// generation is what the objects are at, and versions what the API server calls it.
	generation int
	versions   []string
}

// tally is what was killed where, by tests that may run at once. mu guards what is below it.
type tally struct {
	// reads counts those that found all that there has to be.
	reads atomic.Int64

	mu sync.Mutex
	// names counts the kills by operation and name of the call.
	names map[string]int
}

func newTally() *tally { return &tally{names: map[string]int{}} }

// has says whether a call was the last one of some process.
func (sum *tally) has(name string) bool {
	sum.mu.Lock()
	defer sum.mu.Unlock()
	return sum.names[name] > 0
}

func (k *killing) killed(operation string, calls []supervise.Call) {
	k.t.Helper()
	at := calls[len(calls)-1]
	k.tally.mu.Lock()
	defer k.tally.mu.Unlock()
	k.tally.names[operation+" "+at.Name]++
	k.t.Logf("%s of %s killed at call %d: %s", operation, k.shape.name, len(calls), at)
}

// newKilling starts a node and makes the shape's objects.
func newKilling(t *testing.T, s *shape, sum *tally) *killing {
	t.Helper()
	k := &killing{supervisedNode: newSupervisedNode(t), shape: s, tally: sum}
	for _, o := range s.objects {
		o.padding = k.canary()
	}
	k.change()
	return k
}

// change brings the objects to the next generation.
func (k *killing) change() {
	k.t.Helper()
	k.generation++
	k.versions = nil
	for _, o := range k.shape.objects {
		k.versions = append(k.versions, k.putObject(o.kind, o.name, o.data(k.generation)).GetResourceVersion())
	}
}

// touch changes the objects such that no file changes: only their resourceVersions do.
func (k *killing) touch() {
	k.t.Helper()
	k.versions = nil
	patch := fmt.Appendf(nil, `{"metadata": {"annotations": {"touched": %q}}}`, uuid.NewUUID())
	for _, o := range k.shape.objects {
		resource := map[string]string{"secret": "secrets", "configMap": "configmaps"}[o.kind]
		changed := &metav1.PartialObjectMetadata{}
		text, err := shared.Client().CoreV1().RESTClient().Patch(types.MergePatchType).Namespace(k.namespace).Resource(resource).Name(o.name).Body(patch).DoRaw(k.t.Context())
		if err := errors.Join(err, json.Unmarshal(text, changed)); err != nil {
			k.t.Fatal(err)
		}
		k.versions = append(k.versions, changed.GetResourceVersion())
	}
}

func (k *killing) newVolume() *harness.Volume { return k.volume(k.shape.attributes()) }

// current returns nil once the volume shows the present generation of all objects, and
// nothing else. InPlace keeps the files of keys that have gone, empty.
func (k *killing) current(v *harness.Volume) error {
	files, err := harness.Files(k.Target(v))
	if err != nil {
		return err
	}
	for _, o := range k.shape.objects {
		for key, want := range o.data(k.generation) {
			if got := files[key]; got != want {
				return fmt.Errorf("%s holds %q, want %q", key, got, want)
			}
			delete(files, key)
		}
	}
	for path, file := range files {
		if k.shape.strategy != "InPlace" || file != "" {
			return fmt.Errorf("%s is still there", path)
		}
	}
	return nil
}

func (k *killing) becomesCurrent(v *harness.Volume) {
	k.t.Helper()
	harness.Eventually(k.t, afterRestart, func() error { return k.current(v) })
}

// settled returns nil once the volume is current and nothing is left to do for it: the
// volume itself says so, and the generation before is gone.
func (k *killing) settled(v *harness.Volume) error {
	if err := k.current(v); err != nil {
		return err
	}
	record, err := harness.Record(k.Target(v))
	if err != nil {
		return err
	}
	for _, version := range k.versions {
		if !strings.Contains(record, " "+version+"\n") {
			return fmt.Errorf("the record does not name resourceVersion %s", version)
		}
	}
	return k.pruned(v)
}

// watch has a witness read the volume. With InPlace a file may be torn by a kill, so
// nobody reads it then.
func (k *killing) watch(v *harness.Volume, mayVanish bool) (finish func()) {
	k.t.Helper()
	if k.shape.strategy == "InPlace" {
		return func() {}
	}
	w := startWitness(k.t, harness.Scaled(5*time.Millisecond, time.Millisecond),
		&witness{shape: k.shape, target: k.Target(v), mayVanish: mayVanish, reads: &k.tally.reads})
	return func() {
		k.t.Helper()
		if err := w.finish(); err != nil {
			k.t.Errorf("a reader saw: %v", err)
		}
	}
}
