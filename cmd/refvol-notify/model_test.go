package main

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/cryptotest"
	"testing/synctest"
	"time"

	"github.com/refvol/refvol/internal/dice"
)

// podModel is a pod whose objects give variables, with a kubelet and a volume that learn of changes late, and containers that crash. Its
// decisions come from a seed.
type podModel struct {
	*pod
	*rand.Rand
	volume *liveVolume
	state  string
	// world protects objects, writing the volume.
	world, writing sync.Mutex
	// objects are what the objects give now. changes counts their changes.
	objects map[string]string
	changes int
	// containers has the variables of each of the application's containers, by name, or nil before they have started.
	containers map[string]map[string]string
	// unsaved are the times at which the state could not be saved.
	unsaved int
	// late means that the kubelet and the volume learn of changes late.
	late bool
	// deletes means that variables are taken away. Otherwise containers crash: one that crashes before the restart keeps a variable that was there
	// only for that time (docs/apply.md).
	deletes bool
	faults  []string
}

func newPodModel(t *testing.T, seed uint64) *podModel {
	m := &podModel{Rand: rand.New(rand.NewPCG(seed, 11)), volume: newVolume(t), objects: map[string]string{}}
	m.late = m.IntN(3) > 0
	m.deletes = m.IntN(2) > 0
	m.pod = envPod(t, m.volume)
	m.state, m.mayCrash = m.options.state, true
	m.started = func(ctx context.Context) {
		m.mu.Lock()
		defer m.mu.Unlock()
		if ctx.Err() == nil && m.containers == nil {
			m.containers = map[string]map[string]string{"web": maps.Clone(m.variables), "proxy": maps.Clone(m.variables)}
		}
	}
	m.restarted = func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.containers = nil
	}
	for i := range 4 {
		m.put(fmt.Sprint("V_", i))
	}
	m.write()
	m.learn()
	return m
}

// put gives a variable another value, or takes it away.
func (m *podModel) put(name string) {
	m.changes++
	m.world.Lock()
	defer m.world.Unlock()
	if m.deletes && m.IntN(3) == 0 {
		delete(m.objects, name)
	} else {
		m.objects[name] = fmt.Sprint(m.changes)
	}
}

func (m *podModel) given() map[string]string {
	m.world.Lock()
	defer m.world.Unlock()
	return maps.Clone(m.objects)
}

// write shows what the objects give, and learn tells the kubelet.
func (m *podModel) write() {
	var text strings.Builder
	objects := m.given()
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		fmt.Fprintf(&text, "%s=%s\x00", name, objects[name])
	}
	m.writing.Lock()
	defer m.writing.Unlock()
	m.volume.writeWant(text.String())
	m.wakeUp()
}

func (m *podModel) learn() {
	objects := m.given()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.variables = map[string]string{"PATH": "/bin"}
	maps.Copy(m.variables, objects)
}

// later calls f after a while, or at once if nothing is late.
func (m *podModel) later(longest time.Duration, f func()) {
	if !m.late {
		f()
		return
	}
	time.AfterFunc(time.Duration(m.Int64N(int64(longest))), f)
}

// The volume and the kubelet show what the objects give when they learn of it.
func (m *podModel) change() {
	m.put(fmt.Sprint("V_", m.IntN(4)))
	m.later(3*time.Second, m.write)
	m.later(40*time.Second, m.learn)
}

// look fails if applied has a receipt and a container lacks a variable of it, or has another one. A container that has started after a
// newer change than the volume's may be ahead.
func (m *podModel) look() {
	s, err := loadState(m.state)
	if err != nil || !s.Equal || !m.current().isStarting() {
		return
	}
	want, is, err := newEnvironment(m.volume.path, "V", nil).readWant()
	if err != nil || s.Running[m.options.want()] != is {
		return
	}
	objects := m.given()
	m.mu.Lock()
	defer m.mu.Unlock()
	for name, has := range m.containers {
		has = maps.Clone(has)
		delete(has, "PATH")
		if !maps.Equal(has, want) && !maps.Equal(has, objects) {
			m.faults = append(m.faults, fmt.Sprintf("at %s applied has a receipt for %v, and %s has %v", time.Since(m.began), want, name, has))
		}
	}
}

// TestModel: whatever happens to the objects, the kubelet and the sidecar, applied has no receipt before all containers have exactly the
// wanted variables, all changes reach them, and nothing restarts without one.
func TestModel(t *testing.T) {
	for _, seed := range dice.Seeds(t, 16) {
		m := (*podModel)(nil)
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cryptotest.SetGlobalRandom(t, seed)
				m = newPodModel(t, seed)
				m.play(t)
			})
		})
	}
}

func (m *podModel) play(t *testing.T) {
	stop := m.start()
	synctest.Wait() // the first process runs
	crashes := 0
	for range 300 {
		<-time.After(time.Duration(m.IntN(10000)) * time.Millisecond)
		m.look()
		switch m.IntN(20) {
		case 0, 1:
			m.change()
		case 2: // the sidecar crashes
			m.mu.Lock()
			m.kill()
			m.mu.Unlock()
			crashes++
		case 4: // a container crashes, and starts with what the kubelet knows
			m.mu.Lock()
			if !m.deletes && m.containers != nil {
				m.containers["web"] = maps.Clone(m.variables)
			}
			m.mu.Unlock()
		case 3: // the state can't be saved for a while
			blocked := filepath.Join(m.state, stateFile+".new")
			if os.Mkdir(blocked, 0o700) == nil {
				time.AfterFunc(time.Duration(m.IntN(20000))*time.Millisecond, func() { _ = os.Remove(blocked) })
				m.unsaved++
			}
		}
	}
	<-time.After(time.Hour) // the volume and the kubelet have learned of the last change
	_, starts := m.times()
	settled := len(starts)
	<-time.After(time.Hour)
	m.look()
	stop()
	_, starts = m.times()
	fail := func(what string) {
		t.Errorf("%s; late %t, %d changes, %d starts, %d crashes\n%s", what, m.late, m.changes, len(starts), crashes, m.log)
	}
	for _, fault := range m.faults[:min(len(m.faults), 3)] {
		fail(fault)
	}
	if len(starts) > settled {
		fail("it restarts without a change")
	}
	if !m.late && m.unsaved == 0 && len(starts) > 1+m.changes+crashes {
		fail("it has restarted twice for one change")
	}
	want := maps.Clone(m.variables)
	for name, has := range m.containers {
		if !maps.Equal(has, want) {
			fail(fmt.Sprintf("%s has %v, want %v", name, has, want))
		}
	}
	if !strings.Contains(m.metrics(), "\nrefvol_notify_old_variables 0\n") {
		fail("the metrics say that variables are old")
	}
	if !isApplied(t, m.state) {
		fail("applied has no receipt")
	}
}
