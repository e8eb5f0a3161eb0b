package volume

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestParseShare(t *testing.T) {
	for text, want := range map[string]int{"": 100, "0%": 0, "7%": 7, "10%": 10, "100%": 100} {
		if got, ok := ParseShare(text); got != want || !ok {
			t.Errorf("%q: %d, %t", text, got, ok)
		}
	}
	for _, text := range []string{"10", "%", "101%", "-1%", "1.5%", " 1%", "1%\n", "00%", "010%", "ten", "100%" + strings.Repeat("0", 1<<18)} {
		if got, ok := ParseShare(text); got != 0 || ok {
			t.Errorf("%.20q: %d, %t", text, got, ok)
		}
	}
}

// knownPlace was computed by another program.
const knownPlace = 98

// TestRolloutPlace: places are spread over all percents, and a known pod has the place that it always had. With another place, a held
// version would reach pods that had not taken it.
func TestRolloutPlace(t *testing.T) {
	if got := RolloutPlace("5f1c3a52-6d3e-4c1b-9f0a-5b2c7d000001"); got != knownPlace {
		t.Errorf("the place is %d, want %d", got, knownPlace)
	}
	const pods = 20_000
	var counts [101]int
	for i := range pods {
		counts[RolloutPlace(types.UID(fmt.Sprintf("%08x-6d3e-4c1b-9f0a-5b2c7d%06x", i*2654435761, i)))]++
	}
	for i, n := range counts[1:] {
		if n < pods/100*7/10 || n > pods/100*13/10 {
			t.Errorf("%d of %d pods have the place %d", n, pods, i+1)
		}
	}
}
