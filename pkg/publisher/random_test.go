package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/failure"
	"github.com/refvol/refvol/pkg/record"
	"github.com/refvol/refvol/pkg/volume"
)

// TestRandomCalls runs many volumes at the same time, with objects that appear, change and disappear, mounts and writes that sometimes
// fail, and restarts. A model knows for each volume whether it is published and what it names. Whenever everything has settled, what is
// mounted, shown, recorded, registered and counted must agree with the model and the objects.
func TestRandomCalls(t *testing.T) {
	for _, seed := range dice.Seeds(t, 1) {
		randomCalls(t, seed)
	}
}

func randomCalls(t *testing.T, seed uint64) {
	const volumes, rounds, steps = 200, 2, 5
	inBubble(t, func(e *env) {
		w := &world{env: e, dice: rand.New(rand.NewPCG(seed, 0)), before: map[*fakeTmpfs]map[string]int{}}
		for i := range volumes {
			w.volumes = append(w.volumes, newModel(w, i, seed))
		}
		for round := range rounds {
			w.misbehave(true)
			var running sync.WaitGroup
			for _, m := range w.volumes {
				running.Go(func() { m.live(steps) })
			}
			running.Go(func() { w.changeObjects(40) })
			running.Wait()
			w.misbehave(false)
			w.putAll()
			after(2*retryMax + time.Second)
			e.settle()
			w.check(fmt.Sprintf("round %d", round))
			e.restart()
			e.settle()
			w.check(fmt.Sprintf("restart %d", round))
		}
		for _, m := range w.volumes {
			e.unpublish(m.request)
		}
		w.removeVanished()
		e.wantNothing()
	})
}

// world is what the volumes of a random test share.
type world struct {
	*env
	volumes []*model

	mu   sync.Mutex
	dice *rand.Rand
	// before has what each file system showed last.
	before   map[*fakeTmpfs]map[string]int
	vanished []string
}

const worldObjects = 12

func (w *world) roll(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dice.IntN(n)
}

// misbehave enables or disables the faults.
func (w *world) misbehave(on bool) {
	for _, method := range []string{"Create", "Attach", "Reopen", "Unmount"} {
		w.mounts.on(method, func() error {
			if on && w.roll(20) == 0 {
				return errFault
			}
			return nil
		})
	}
	w.mounts.on("Close", w.lookBack)
	w.writes.set(func() error {
		if on && w.roll(10) == 0 {
			return errFault
		}
		return nil
	}, nil)
}

// lookBack is called at the end of each write, and checks one of the volumes.
func (w *world) lookBack() error {
	w.mounts.mu.Lock()
	mounted := slices.Collect(maps.Values(w.mounts.attached))
	w.mounts.mu.Unlock()
	if len(mounted) > 0 {
		w.compare(mounted[w.roll(len(mounted))])
	}
	return nil
}

// compare checks one file system: each object has its version as its value, and no version may be older than at the last check. A file may
// be absent if the check meets a write.
func (w *world) compare(fsys *fakeTmpfs) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.before[fsys]
	now := map[string]int{}
	for i := range worldObjects {
		name := worldObject(i)
		text, err := os.ReadFile(fsys.dir + "/..data/" + name)
		if err != nil {
			continue
		}
		version, err := strconv.Atoi(string(text))
		if err != nil || version < before[name] {
			w.Errorf("volume %s shows %q of %s after %d", fsys.volumeID, text, name, before[name])
		}
		now[name] = version
	}
	w.before[fsys] = now
}

func worldObject(i int) string { return fmt.Sprintf("object-%d", i) }

// put sets an object's value to its own version.
func (w *world) put(i int) {
	ref := configMap(worldObject(i))
	w.objects.putWith(ref, func(version string) map[string][]byte { return map[string][]byte{ref.Name: []byte(version)} })
}

func (w *world) putAll() {
	for i := range worldObjects {
		w.objects.failWith(configMap(worldObject(i)), nil)
		w.put(i)
	}
}

func (w *world) changeObjects(times int) {
	for range times {
		i := w.roll(worldObjects)
		switch ref := configMap(worldObject(i)); w.roll(8) {
		case 0:
			w.objects.remove(ref)
		case 1:
			w.objects.failWith(ref, errFault)
		default:
			w.objects.failWith(ref, nil)
			w.put(i)
		}
		after(time.Duration(w.roll(400)) * time.Millisecond)
	}
}

// check compares everything with the model and the objects.
func (w *world) check(when string) {
	w.Helper()
	var bytes int64
	published := 0
	for _, m := range w.volumes {
		id := m.request.VolumeID
		_, registered := w.objects.registrations()[registrationKey(m.request.Pod, id)]
		if !m.published {
			if files := w.mounts.files(m.request.Target); files != nil || registered {
				w.Errorf("%s: %s is not published: shows %v, registered %t", when, id, files, registered)
			}
			continue
		}
		published++
		if !registered {
			w.Fatalf("%s: %s is published and not registered", when, id)
		}
		want, versions := map[string]string{}, record.Versions{}
		for _, ref := range m.refs {
			versions[ref] = w.objects.get(ref).Version
			want[ref.Name] = versions[ref].ResourceVersion
		}
		bytes += taken(len(want), len(want))
		if got := w.recorded(m.request); !maps.Equal(got, versions) {
			w.Errorf("%s: the record of %s says %v, want %v", when, id, got, versions)
		}
		if got := w.mounts.files(m.request.Target); !maps.Equal(got, want) || len(want) == 0 {
			w.Errorf("%s: %s shows %v, want %v", when, id, got, want)
		}
	}
	if got := w.used(); got != bytes {
		w.Errorf("%s: %d bytes counted, want %d", when, got, bytes)
	}
	w.Logf("%s: %d of %d volumes are published", when, published, len(w.volumes))
}

func (w *world) removeVanished() {
	w.Helper()
	for _, dir := range w.vanished {
		if err := os.RemoveAll(dir); err != nil {
			w.Fatal(err)
		}
	}
}

// model is what a test knows about one volume. It belongs to the goroutine that uses the volume.
type model struct {
	*world
	request   binding.Request
	refs      []volume.Ref
	random    *rand.Rand
	published bool
}

func newModel(w *world, i int, seed uint64) *model {
	random := rand.New(rand.NewPCG(seed, uint64(i)+1))
	first, second := worldObject(random.IntN(worldObjects)), worldObject(random.IntN(worldObjects))
	sources := fmt.Sprintf("[{configMap: {name: %s}}, {configMap: {name: %s, optional: true}}]", first, second)
	m := &model{world: w, request: w.request(fmt.Sprintf("v%d", i), "sources", sources), refs: []volume.Ref{configMap(first), configMap(second)}, random: random}
	w.pods.add(m.request)
	return m
}

// live makes some calls, and ends with one that defines the volume's state.
func (m *model) live(steps int) {
	for range steps {
		switch m.random.IntN(10) {
		case 0, 1, 2, 3, 4:
			m.callPublish()
		case 5, 6:
			m.callUnpublish()
		case 7:
			m.callBoth()
		case 8:
			m.loseMount()
		default:
			after(time.Duration(m.random.IntN(3000)) * time.Millisecond)
		}
	}
}

func (m *model) callPublish() {
	ctx, cancel := context.WithTimeout(m.ctx, time.Duration(m.random.IntN(3000))*time.Millisecond)
	defer cancel()
	err := m.p.Publish(ctx, m.request)
	if m.published && err != nil {
		m.Errorf("publish of the live volume %s: %v", m.request.VolumeID, err)
	}
	m.published = err == nil
	if err != nil && strings.Contains(err.Error(), "is just becoming visible") {
		m.unpublishAtLast() // nobody knows whether it did
		return
	}
	if err != nil && !errors.Is(err, errFault) && !errors.Is(err, context.DeadlineExceeded) && failure.ReasonOf(err) != failure.ReasonNotFound {
		m.Errorf("publish of %s: %v", m.request.VolumeID, err)
	}
}

func (m *model) callUnpublish() {
	switch err := m.p.Unpublish(m.ctx, m.request.VolumeID, m.request.Target); {
	case err == nil:
		m.published = false
	case !errors.Is(err, errFault):
		m.Errorf("unpublish of %s: %v", m.request.VolumeID, err)
	}
}

// callBoth makes two calls at the same time. Either may win, so an unpublish follows.
func (m *model) callBoth() {
	var running sync.WaitGroup
	running.Go(func() { _ = m.p.Publish(m.ctx, m.request) })
	running.Go(func() { _ = m.p.Unpublish(m.ctx, m.request.VolumeID, m.request.Target) })
	running.Wait()
	m.unpublishAtLast()
}

// unpublishAtLast calls unpublish until it succeeds.
func (m *model) unpublishAtLast() {
	for m.published = true; m.published; {
		m.callUnpublish()
	}
}

// loseMount makes the volume's mount vanish, which a publish repairs. If that fails, nothing may remain of either mount.
func (m *model) loseMount() {
	if !m.published {
		return
	}
	dir := m.mounts.vanish(m.request.Target)
	m.mu.Lock()
	m.vanished = append(m.vanished, dir)
	m.mu.Unlock()
	m.published = false
	m.callPublish()
}
