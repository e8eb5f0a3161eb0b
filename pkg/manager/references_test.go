package manager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/pkg/volume"
)

func TestReferences(t *testing.T) {
	a, b, c := secretRef("a"), secretRef("b"), configMapRef("a")
	other := volume.Ref{Kind: volume.Secret, Namespace: "other", Name: "a"}
	for _, tc := range []struct {
		name string
		do   func(m *Manager)
		want []volume.Ref
	}{
		{"one volume", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, b})
		}, []volume.Ref{a, b}},
		{"registered and gone", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, b})
			m.UnregisterPod(pod("p"), "v")
		}, nil},
		{"registered twice, unregistered once", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a})
			m.RegisterPod(pod("p"), "v", []volume.Ref{a})
			m.UnregisterPod(pod("p"), "v")
		}, nil},
		{"a reference named twice", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, a, b})
			m.RegisterPod(pod("p"), "v", []volume.Ref{b, b})
		}, []volume.Ref{b}},
		{"other references the second time", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, b})
			m.RegisterPod(pod("p"), "v", []volume.Ref{b, c})
		}, []volume.Ref{b, c}},
		{"no references the second time", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, b})
			m.RegisterPod(pod("p"), "v", nil)
		}, nil},
		{"two volumes of a pod add up", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, b})
			m.RegisterPod(pod("p"), "w", []volume.Ref{b, c})
			m.UnregisterPod(pod("p"), "v")
		}, []volume.Ref{b, c}},
		{"a new pod of an old name", func(m *Manager) {
			m.RegisterPod(pod("old"), "v", []volume.Ref{a, b})
			m.RegisterPod(pod("new"), "w", []volume.Ref{a})
			m.UnregisterPod(pod("old"), "v")
		}, []volume.Ref{a}},
		{"unregistered too often", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a})
			m.RegisterPod(pod("q"), "w", []volume.Ref{a})
			m.UnregisterPod(pod("p"), "v")
			m.UnregisterPod(pod("p"), "v")
			m.UnregisterPod(pod("p"), "unknown")
			m.UnregisterPod(pod("q"), "v")
			m.UnregisterPod(pod("unknown"), "w")
		}, []volume.Ref{a}},
		{"unregistered first", func(m *Manager) {
			m.UnregisterPod(pod("p"), "v")
			m.RegisterPod(pod("p"), "v", []volume.Ref{a})
		}, []volume.Ref{a}},
		{"kinds and namespaces don't mix", func(m *Manager) {
			m.RegisterPod(pod("p"), "v", []volume.Ref{a, c, other})
			m.RegisterPod(pod("p"), "v", []volume.Ref{c, other})
		}, []volume.Ref{c, other}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			inEachBubble(t, func(t *testing.T, e *env) {
				tc.do(e.Manager)
				e.wantReferenced([]volume.Ref{a, b, c, other}, tc.want)
			})
		})
	}
}

func TestReferencesInBothSetsAreNeverLetGo(t *testing.T) {
	inBubble(t, func(t *testing.T, e *env) {
		kept, dropped, added := secretRef("kept"), secretRef("dropped"), secretRef("added")
		e.RegisterPod(pod("p"), "v", []volume.Ref{kept, dropped})
		synctest.Wait()
		e.RegisterPod(pod("p"), "v", []volume.Ref{added, kept})
		e.wantNotFound(added)
		e.wantNotFound(kept)
		if got := e.api.requests(kept); len(got) != 1 {
			t.Errorf("got requests %v, want one", got)
		}
		e.wantWatches(dropped, 0)
	})
}

func TestAReferenceThatWasNeverAddedLeavesNoCount(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := secretRef("a")
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.drop("other", registration{objects: []key{{ref: ref}, {ref: secretRef("unknown")}}})
		e.wantWatches(ref, 1)
		e.UnregisterPod(pod("p"), "v")
		e.wantWatches(ref, 0)
		e.wantGetErr(ref, ErrNotRegistered)
	})
}

// wantReferenced checks that of all exactly want is registered and watched.
func (e *env) wantReferenced(all, want []volume.Ref) {
	e.t.Helper()
	wanted := map[volume.Ref]bool{}
	for _, ref := range want {
		wanted[ref] = true
	}
	for _, ref := range all {
		if wanted[ref] {
			e.wantWatches(ref, 1)
			e.wantNotFound(ref)
		} else {
			e.wantWatches(ref, 0)
			e.wantGetErr(ref, ErrNotRegistered)
		}
	}
}

// TestReferencesAgainstModel compares the manager after each of many random
// registrations with a model that has no counts at all.
func TestReferencesAgainstModel(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	all := []volume.Ref{secretRef("a"), secretRef("b"), configMapRef("a"), configMapRef("b"), configMapRef("c")}
	inEachBubble(t, func(t *testing.T, e *env) {
		model := map[string][]volume.Ref{} // by pod and volume
		for i := range 300 {
			uid, vol := fmt.Sprint("p", rng.IntN(4)), fmt.Sprint("v", rng.IntN(3))
			if rng.IntN(2) == 0 {
				refs := make([]volume.Ref, rng.IntN(5))
				for j := range refs {
					refs[j] = all[rng.IntN(len(all))]
				}
				model[uid+vol] = refs
				e.RegisterPod(pod(uid), vol, refs)
			} else {
				delete(model, uid+vol)
				e.UnregisterPod(pod(uid), vol)
			}
			checkModel(t, e, all, model)
			if t.Failed() {
				t.Fatalf("after step %d", i)
			}
		}
	})
}

func checkModel(t *testing.T, e *env, all []volume.Ref, model map[string][]volume.Ref) {
	t.Helper()
	want := map[volume.Ref]map[types.UID]int{}
	for key, refs := range model {
		for _, ref := range slices.Compact(slices.SortedFunc(slices.Values(refs), func(a, b volume.Ref) int { return strings.Compare(a.String(), b.String()) })) {
			if want[ref] == nil {
				want[ref] = map[types.UID]int{}
			}
			want[ref][types.UID(key[:2])]++
		}
	}
	synctest.Wait()
	for _, ref := range all {
		watches := 0
		if want[ref] != nil {
			watches = 1
		}
		e.wantWatches(ref, watches)
		obj := e.item(ref)
		if (obj != nil) != (want[ref] != nil) {
			t.Errorf("%s: registered: %v, references: %v", ref, obj != nil, want[ref])
		} else if obj != nil {
			got := map[types.UID]int{}
			for uid, n := range obj.place.pods {
				got[uid] = int(n.volumes)
			}
			if !maps.Equal(got, want[ref]) {
				t.Errorf("%s: counts %v, want %v", ref, got, want[ref])
			}
		}
	}
}

func TestUnknownKindIsNotRegistered(t *testing.T) {
	inEachBubble(t, func(t *testing.T, e *env) {
		ref := volume.Ref{Kind: "Pod", Namespace: "ns", Name: "a"}
		e.RegisterPod(pod("p"), "v", []volume.Ref{ref})
		e.wantGetErr(ref, ErrNotRegistered)
		e.UnregisterPod(pod("p"), "v")
	})
}
