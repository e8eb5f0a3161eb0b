package harness

import (
	"context"
	"os"
	"testing"
)

func TestMain(m *testing.M) {
	os.Exit(Main(m, func(context.Context) (func() error, error) {
		return func() error { return nil }, nil
	}))
}
