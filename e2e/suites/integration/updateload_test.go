package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/refvol/refvol/e2e/tools/harness"
)

const (
	// loadVolumes volumes have objects of their own, so that one object's updates
	// don't merge with those of all others into the few switches that a volume makes.
	loadVolumes  = 6
	loadUpdaters = 6
	loadReaders  = 8 // that read whole generations
	loadLinks    = 4 // that read single files as a container does
	loadKeys     = 3 // of each object
)

// updateLoad is volumes whose objects change all the time, and those who read them.
type updateLoad struct {
	n        *node
	seed     uint64
	volumes  []*loadVolume
	updates  atomic.Int64
	switches *switchCounter
	readings loadReadings
}

// loadVolume shows two ConfigMaps and a Secret.
type loadVolume struct {
	*harness.Volume
	objects []*loadObject

	mu sync.Mutex
	// seen is what each generation was seen to show, by the name of its directory.
	seen map[string][3]int
}

// loadObject has the same version, a number, in all its keys.
type loadObject struct {
	secret       bool
	name, canary string
	version      int          // its updater's own
	newest       atomic.Int64 // the newest version that any reader has seen
}

func (o *loadObject) key(i int) string { return fmt.Sprintf("%s-%d", o.name, i) }

// content is what a key holds in a version. A file of which a part is of another
// version, or missing, is no version's content.
func (o *loadObject) content(version int) string {
	return o.canary + strings.Repeat(fmt.Sprintf(":%d", version), 100)
}

// versionOf is the inverse of content.
func (o *loadObject) versionOf(content string) (int, error) {
	var version int
	rest, ok := strings.CutPrefix(content, o.canary+":")
	if ok {
		_, err := fmt.Sscanf(rest, "%d:", &version)
		ok = err == nil && content == o.content(version)
	}
	if !ok {
		return 0, fmt.Errorf("%s holds %d bytes that are no version's", o.name, len(content))
	}
	return version, nil
}

func newUpdateLoad(t *testing.T) *updateLoad {
	t.Helper()
	seed := harness.Seed(t)
	// At -v=10 the log of every single event would be what is measured.
	f := &updateLoad{n: newNode(t, "-v=2"), seed: seed, switches: newSwitchCounter(t)}
	for i := range loadVolumes {
		v := &loadVolume{seen: make(map[string][3]int)}
		for j := range 3 {
			o := &loadObject{secret: j == 2, name: fmt.Sprintf("o%d-%d", i, j), canary: f.n.canary()}
			v.objects = append(v.objects, o)
			if err := f.put(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		v.Volume = f.n.volume(map[string]string{"sources": fmt.Sprintf(
			"- configMap: {name: o%d-0}\n- configMap: {name: o%d-1}\n- secret: {name: o%d-2}\n", i, i, i)})
		f.n.mustPublish(v.Volume)
		if err := f.switches.Add(f.n.Target(v.Volume)); err != nil {
			t.Fatal(err)
		}
		f.volumes = append(f.volumes, v)
	}
	return f
}

// put creates the object in its first version and updates it to a later one.
func (f *updateLoad) put(ctx context.Context, o *loadObject) (err error) {
	text, meta := make(map[string]string), metav1.ObjectMeta{Name: o.name}
	for i := range loadKeys {
		text[o.key(i)] = o.content(o.version)
	}
	configMaps := shared.Client().CoreV1().ConfigMaps(f.n.namespace)
	configMap := &corev1.ConfigMap{ObjectMeta: meta, Data: text}
	secrets := shared.Client().CoreV1().Secrets(f.n.namespace)
	secret := &corev1.Secret{ObjectMeta: meta, StringData: text}
	switch first := o.version == 0; {
	case o.secret && first:
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	case o.secret:
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	case first:
		_, err = configMaps.Create(ctx, configMap, metav1.CreateOptions{})
	default:
		_, err = configMaps.Update(ctx, configMap, metav1.UpdateOptions{})
	}
	return err
}

// updateAll makes the updates, as fast as the API server takes them, and goes on until it may end.
// It returns when all are made. Each object has one updater.
func (f *updateLoad) updateAll(updates int, mayEnd func() bool) {
	var group sync.WaitGroup
	for i := range loadUpdaters {
		choose := rand.New(rand.NewPCG(f.seed, uint64(i)))
		var mine []*loadObject
		for j, v := range f.volumes {
			if j%loadUpdaters == i {
				mine = append(mine, v.objects...)
			}
		}
		group.Go(func() {
			for (f.updates.Add(1) <= int64(updates) || !mayEnd()) && !f.n.t.Failed() {
				o := mine[choose.IntN(len(mine))]
				o.version++
				if err := f.put(f.n.t.Context(), o); err != nil {
					f.n.t.Errorf("update %s: %v", o.name, err)
				}
			}
		})
	}
	group.Wait()
}

// read starts all readers; the returned function ends them.
func (f *updateLoad) read() (stop func()) {
	ctx, cancel := context.WithCancel(f.n.t.Context())
	var group sync.WaitGroup
	for i := range loadReaders + loadLinks {
		r, err := newLoadReader(f, i)
		if err != nil {
			cancel()
			f.n.t.Fatal(err)
		}
		read := r.generation
		if i >= loadReaders {
			read = r.link
		}
		group.Go(func() {
			r.run(ctx, read)
			if err := r.close(); err != nil {
				f.n.t.Error(err)
			}
		})
	}
	return func() { cancel(); group.Wait() }
}

// wantCurrent waits until every volume shows the last version of each object.
func (f *updateLoad) wantCurrent(within time.Duration) {
	f.n.t.Helper()
	for _, v := range f.volumes {
		for _, o := range v.objects {
			f.n.arrives(v.Volume, o.key(0), o.content(o.version), within)
		}
	}
}

func (f *updateLoad) finish() {
	f.n.t.Helper()
	f.wantCurrent(afterRestart)
	f.report()
	for _, v := range f.volumes {
		f.n.mustUnpublish(v.Volume)
	}
	f.n.wantNothingLeft()
}

func TestReadersDuringUpdates(t *testing.T) {
	f := newUpdateLoad(t)
	stop := f.read()
	f.updateAll(harness.Scaled(1200, 100_000), func() bool { return true })
	stop()
	f.finish()
}

// TestReadersDuringRestarts ends the plugin while the objects change, now as a crash
// does, now as the kubelet does, and starts it again.
func TestReadersDuringRestarts(t *testing.T) {
	f := newUpdateLoad(t)
	stop := f.read()
	var stopped atomic.Bool
	updated := make(chan struct{})
	go func() {
		defer close(updated)
		f.updateAll(harness.Scaled(2500, 100_000), stopped.Load)
	}()
	defer func() { stop(); <-updated }()
	kills, stops, slowest := 0, 0, time.Duration(0)
	for over := false; !over; {
		f.switches.await(t, 20, soon, updated)
		if kills > stops {
			if err := f.n.Terminate(t.Context()); err != nil {
				t.Fatal(err)
			}
			stops++
			stopped.Store(true)
		} else {
			f.n.mustKill()
			kills++
		}
		begin := time.Now()
		f.n.mustStart()
		f.switches.await(t, 1, afterRestart, updated)
		slowest = max(slowest, time.Since(begin))
		select {
		case <-updated:
			over = true
		default:
		}
	}
	f.wantCurrent(afterRestart)
	stop()
	t.Logf("%d kills and %d stops; changes showed again %s after the start at most", kills, stops, slowest.Round(time.Millisecond))
	f.finish()
}
