// Package faults tests a plugin that does not reach the API server, or is refused by it: connections that are cut or deaf, an API server
// that starts, rights that are lost. Running pods keep their files and can end, new ones wait, and all is current again afterwards.
package faults

import (
	"os"
	"testing"

	"github.com/refvol/refvol/e2e/tools/world"
)

// lab is set by TestMain, and constant from then on.
var lab *world.Lab

func TestMain(m *testing.M) { os.Exit(world.Main(m, &lab)) }
