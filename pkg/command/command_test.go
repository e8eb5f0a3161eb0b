package command

import (
	"errors"
	"fmt"
	"testing"
)

func TestExitStatus(t *testing.T) {
	plain := errors.New("plain")
	for err, want := range map[error]int{
		nil: 0, plain: Unknown, WithStatus(No, nil): 0, WithStatus(None, plain): None,
		fmt.Errorf("wrapped: %w", WithStatus(No, plain)): No, errors.Join(nil, WithStatus(No, plain)): No,
	} {
		if got := ExitStatus(err); got != want {
			t.Errorf("%v: %d, want %d", err, got, want)
		}
	}
	if !errors.Is(WithStatus(No, plain), plain) {
		t.Error("the cause is lost")
	}
}
