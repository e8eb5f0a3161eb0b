# Prints the tests that failed in the output of go test, with -v or without, and their messages. The end of the output shows only a part
# of them, so each message is cut. said has the messages of each test that has not ended, and raw is how many more lines to print as they are.
function say(text) {
	text = substr(text, 1, 240)
	if (failed) print text
	else said[name] = said[name] text "\n"
}
function raise(lines) { print substr($0, 1, 240); raw = lines }
{ match($0, /^ */) }
indent >= 0 && RLENGTH > indent && name != "" { # a message goes on, whatever it says
	if (more-- > 0) say($0)
	next
}
raw > 0 { raw--; print substr($0, 1, 240); next }
/^=== (RUN|PAUSE|CONT|NAME) / {
	name = $3; failed = 0; indent = -1
	if ($2 == "RUN") delete said[name]
	next
}
/^ *--- FAIL: / {
	print
	printf "%s", said[$3]
	delete said[$3]
	name = $3; failed = 1; indent = -1
	next
}
/^ *--- (PASS|SKIP): / { delete said[$3]; name = ""; next }
/^ +[^ ]+\.go:[0-9]+: / { if (name != "") { indent = RLENGTH; more = 12; say($0) }; next }
/^(panic|fatal error): / { # of a time limit too: the tests that were running said most of it
	for (running in said) {
		print "--- not ended: " running
		printf "%s", said[running]
		delete said[running]
	}
	raise(40)
	next
}
/^FAIL: / || /DATA RACE/ || /^ThreadSanitizer/ || /\[FAIL\]/ { raise(40); next }
/^(FAIL\t|make.* Error )/ || /^[^ ]+\.go:[0-9]+:[0-9]+: / || /^[^ ]+: .* FAILED / { raise(0); next }
/^(ok  \t|FAIL$|PASS$)/ { name = ""; indent = -1 }
