// Package limits tests pods and callers that want too much: room, memory, publishes without end, held files, paths outside of a
// volume. They get no more than their part, and hold up nobody else.
package limits

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
