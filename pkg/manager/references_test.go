package manager

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/types"

	"github.com/refvol/refvol/internal/dice"
	"github.com/refvol/refvol/pkg/volume"
)

// TestReferencesAgainstModel compares the manager after each of many random registrations with a model that has no counts.
func TestReferencesAgainstModel(t *testing.T) {
	dice.Each(t, 3, compareWithModel)
}

func compareWithModel(t *testing.T, rng *rand.Rand) {
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
