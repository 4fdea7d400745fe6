// Runs Kafka's command-line tools one after the other in one JVM, so that a test does not pay for starting it each time.
// A request is one line on stdin: words in base64, separated by blanks: the class, what its stdin holds, its arguments.
// The answer is one line: exit code, stdout, stderr, the last two in base64.

import java.io.*;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.*;
import org.apache.kafka.common.utils.Exit;

public class ToolRunner {
    // What a tool's exit becomes here: it ends the tool and not the JVM.
    static class Left extends RuntimeException {
        Left(int code) {
            super("exit " + code, null, false, false);
        }
    }

    // The first exit is the tool's own; a `catch (Throwable)` around it may well lead to a second.
    static volatile Integer left;
    static final List<Runnable> hooks = new ArrayList<>();

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        Exit.Procedure leave = (code, message) -> {
            if (left == null) left = code;
            throw new Left(code);
        };
        Exit.setExitProcedure(leave);
        Exit.setHaltProcedure(leave);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        for (String line = requests.readLine(); line != null; line = requests.readLine()) {
            String[] words = Arrays.stream(line.split(" ", -1)).map(ToolRunner::decoded).toArray(String[]::new);
            ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true));
            System.setErr(new PrintStream(err, true));
            System.setIn(new ByteArrayInputStream(words[1].getBytes(StandardCharsets.UTF_8)));
            int code = run(words[0], Arrays.copyOfRange(words, 2, words.length));
            System.out.flush();
            System.err.flush();
            answers.println(code + " " + encoded(out) + " " + encoded(err));
            answers.flush();
        }
    }

    static int run(String className, String[] args) {
        left = null;
        hooks.clear();
        int code = 0;
        try {
            Class.forName(className).getMethod("main", String[].class).invoke(null, (Object) args);
        } catch (InvocationTargetException thrown) {
            if (!(thrown.getCause() instanceof Left)) {
                thrown.getCause().printStackTrace();
                code = 1;
            }
        } catch (ReflectiveOperationException absent) {
            absent.printStackTrace();
            code = 127;
        }
        for (Runnable hook : hooks) hook.run();
        return left == null ? code : left;
    }

    static String decoded(String word) {
        return new String(Base64.getDecoder().decode(word), StandardCharsets.UTF_8);
    }

    static String encoded(ByteArrayOutputStream said) {
        return Base64.getEncoder().encodeToString(said.toByteArray());
    }
}
