// Package crash tests that a volume is complete whenever it is visible, never mixed and never older, and that nothing is left of it
// afterwards: whatever kills or stops the plugin, unmounts or ruins its volumes, or is mounted on them, and whatever the kernel lacks.
package crash

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
