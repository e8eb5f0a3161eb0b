package publisher

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/binding"
	"github.com/refvol/refvol/pkg/opened"
)

// TestRandomOpens opens and changes files, and hides opens from the plugin by kills and overflows, in random order. A model knows which
// content of each file was opened. An object is never reported as opened if one of its files was not, nor as unopened if each of them was.
func TestRandomOpens(t *testing.T) {
	schedules := 60
	switch {
	case os.Getenv("REFVOL_LONG") != "":
		schedules = 2000
	case testing.Short():
		schedules = 15
	}
	for _, seed := range dice.Seeds(t, schedules) {
		random := dice.New(seed)
		strategy := []string{"Atomic", "InPlace"}[random.IntN(2)]
		receiptsInBubble(t, func(e *env, opens *fakeOpens, _ *fakeObserver) {
			m := &openModel{env: e, opens: opens, dice: random, opened: map[string]bool{}, maybe: map[string]bool{}}
			m.change()
			m.request = e.request("v1", "configMap", "app", "writeStrategy", strategy)
			e.publish(m.request)
			for step := range 20 {
				m.step()
				if t.Failed() {
					t.Fatalf("seed %d (%s), step %d: %q", seed, strategy, step, m.log)
				}
			}
			e.unpublish(m.request)
		})
	}
}

type openModel struct {
	*env
	opens   *fakeOpens
	dice    *rand.Rand
	request binding.Request
	// contents has the number of each file's content. opened has those that were opened, by path and number. maybe has those
	// that were shown just before or after an open while the worker may have been writing: nobody knows which of them was opened.
	contents      [3]int
	changes       int
	changing      bool
	opened, maybe map[string]bool
	log           []string
}

// change changes some of the files.
func (m *openModel) change() {
	m.changes++
	m.changing = true
	var pairs []string
	for i := range m.contents {
		if m.changes == 1 || m.dice.IntN(2) == 0 {
			m.contents[i] = m.changes
		}
		pairs = append(pairs, fmt.Sprint("f", i), fmt.Sprint(m.contents[i]))
	}
	m.objects.put(configMap("app"), pairs...)
}

// open opens a file as it is shown now.
func (m *openModel) open() string {
	name := fmt.Sprint("f", m.dice.IntN(len(m.contents)))
	path := m.realPath(m.request, name)
	before := m.shown(name, path)
	if err := m.opens.open(path); err != nil {
		m.Fatal(err)
	}
	if m.changing {
		m.maybe[before], m.maybe[m.shown(name, path)] = true, true
	} else {
		m.opened[before] = true
	}
	return "open " + name
}

// shown returns the name and the content of the file at a path.
func (m *openModel) shown(name, path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		m.Fatal(err)
	}
	return name + "=" + string(content)
}

func (m *openModel) step() {
	var what string
	switch m.dice.IntN(12) {
	case 0:
		what = "kill"
		if m.dice.IntN(2) == 0 { // otherwise the end has time to save what the kernel knows
			m.opens.lose()
		}
		m.halt()
		m.opens.forget()
		m.restart()
	case 1:
		what = "overflow"
		m.opens.lose()
		m.p.OpensLost()
	case 2, 3, 4:
		what = "change"
		m.change()
	case 5: // both at the same time
		what = "change, " + m.open()
		m.change()
	default:
		what = m.open()
	}
	if m.log = append(m.log, what); m.dice.IntN(3) > 0 {
		if err := m.opens.Drain(time.Minute); err != nil {
			m.Fatal(err)
		}
		m.rest()
		m.changing = false
		m.check()
	}
}

// check compares the status with the model.
func (m *openModel) check() {
	o := m.status().Opened[configMap("app")]
	if o == nil {
		m.Error("nothing is told")
		return
	}
	all, maybeAll := true, true
	for i := range m.contents {
		name := fmt.Sprint("f", i)
		shown := m.shown(name, filepath.Join(m.mounts.directory(m.request.Target), name))
		all, maybeAll = all && m.opened[shown], maybeAll && (m.opened[shown] || m.maybe[shown])
	}
	if o.State == opened.Yes && !maybeAll || o.State == opened.No && all {
		m.Errorf("%+v, and all files were opened: %t, maybe %t", *o, all, maybeAll)
	}
}
