package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/refvol/refvol/pkg/checkcmd"
)

// unknownStatus is the exit status of a command that could not have the answer that it is for.
const unknownStatus = 2

// exitError is an error with which the program ends with another status than 1.
type exitError struct {
	error
	status int
}

func (e *exitError) Unwrap() error { return e.error }

// withExitStatus has the program end with a status if err is not nil.
func withExitStatus(err error, status int) error {
	if err == nil {
		return nil
	}
	return &exitError{err, status}
}

// withUnknownStatus has the program end with unknownStatus if the command line of cmd is wrong.
func withUnknownStatus(cmd *cobra.Command) {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		return withExitStatus(cobra.NoArgs(cmd, args), unknownStatus)
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return withExitStatus(err, unknownStatus) })
}

// newCheckCommand returns the command `check`, with unknownStatus where there is no answer.
func newCheckCommand() *cobra.Command {
	cmd := checkcmd.New("refvol-plugin")
	withUnknownStatus(cmd)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if errors.As(err, new(checkcmd.ProblemsError)) {
			return err
		}
		return withExitStatus(err, unknownStatus)
	}
	return cmd
}

// exitStatus returns the status that the program ends with.
func exitStatus(err error) int {
	var exit *exitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.status
	}
	return 1
}
