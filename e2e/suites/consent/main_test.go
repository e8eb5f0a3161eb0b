// Package consent tests whose rights decide what a pod gets: by grants for its account, by its own token, or by those of its node. A
// withdrawal takes the files away, and no other pod or node gets them.
package consent

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
